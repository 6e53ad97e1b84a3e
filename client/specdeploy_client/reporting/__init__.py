"""What people look at: the page and the terminal."""
