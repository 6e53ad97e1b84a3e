"""How requests reach servers: one loop for every protocol, one module for each protocol."""
