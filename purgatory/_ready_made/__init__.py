"""Operations that need no subclass: sets of futures, and numbers that rise past a threshold."""
