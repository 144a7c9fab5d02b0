"""DALI's own iterators where DALI has none: MXNet since 1.40, Paddle without a GPU. Names and signatures are DALI's."""

from portaloader.dali import import_dali

import_dali()  # its absence is told here, before a module below imports a part of it
