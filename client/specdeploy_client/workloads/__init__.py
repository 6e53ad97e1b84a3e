"""What is asked of a server: prompt files, prompts made to a length, recorded traffic, conversations."""
