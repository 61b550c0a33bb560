"""Text to samples: prepares a corpus, learns a tokenizer, serves the data order. Imports
`system`.
"""
