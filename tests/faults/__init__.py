"""Whatever dies, nothing is lost, counted twice or left behind."""
