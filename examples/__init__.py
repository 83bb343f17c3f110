"""Programs that embed the library, to run and to copy from."""
