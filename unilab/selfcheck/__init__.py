"""`unilab selfcheck`: is what this machine computes right, and how fast is it."""
