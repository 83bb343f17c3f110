"""The watch lists: which operations wait under which key, and when an idle key is forgotten."""
