"""The pages of the documentation that are made from where each thing is declared; ``__main__`` writes and checks them.

Each module makes one page: ``PAGE`` is the file's name, ``render`` returns its text.
"""
