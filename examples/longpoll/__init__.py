"""A notification service over HTTP long polls: requests that can't be answered yet wait in a purgatory on the loop."""
