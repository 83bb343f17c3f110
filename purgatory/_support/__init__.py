"""What every part of the core uses: errors, labels of keys, the choice of implementation, and forks."""
