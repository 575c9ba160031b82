"""Packages for a host without a network: what is missing there, as checked parts of one
archive, with the script that unpacks them.

``host`` reads a host's inventory, ``closure`` finds what is missing (pure), ``wheels``
fetches and unpacks wheels through pip, ``archive`` packs, splits and checks, ``make``
joins them.
"""
