"""Generation: a cache for every recipe, sampling, and batches of prompts."""

from harness.decoding.decoder import Decoder
from harness.decoding.generate import Stop, generate, stream
from harness.decoding.sampling import Sampling

__all__ = ["Decoder", "Sampling", "Stop", "generate", "stream"]
