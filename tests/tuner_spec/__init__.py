"""Job specifications, confirmation statistics, estimates and exports: pure code, tested in milliseconds."""
