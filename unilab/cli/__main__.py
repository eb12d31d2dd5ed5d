"""`python -m unilab.cli`."""

from unilab.cli import main

if __name__ == "__main__":
    main()
