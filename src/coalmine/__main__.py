"""``python -m coalmine``."""

from coalmine.cli import main

if __name__ == "__main__":
    main()
