"""What a reader gets: tables, words, figures and one self-contained page."""
