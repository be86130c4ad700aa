"""Benchmarks, run as ``python -m mapie_claps.benchmarks COMMAND``.

``peers`` compares CLAPS with what a user would pick instead; see
:mod:`mapie_claps.benchmarks.peers`. They need ``pip install "mapie-claps[bench]"``.
``large`` is about data larger than memory; see :mod:`mapie_claps.benchmarks.large`.
"""
