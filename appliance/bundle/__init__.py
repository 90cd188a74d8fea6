"""The signed file that is carried to a site without a network: images, compose files, casts, models. docs/bundle.md
says what it looks like, and how it is made and read."""
