"""Learning on encoded rows: dense networks, their weights as flat vectors, and training at many sites at once.

`network` says what a model is and what it predicts, `rows` holds what it learns from, `training` fits it (with the
compiled `kernel`), `reference` is the slow twin that tests compare it with. Nothing here knows about sites' policies,
messages or files, and importing this package imports nothing heavy.
"""
