"""Text: tokenizers, bytes first, chat formats, and whole UTF-8 characters from a stream of bytes.

Imports only `errors`, and the packages `tiktoken` and `tokenizers` where a checkpoint needs them.
"""

from interlace.text.bytes import ByteTokenizer as ByteTokenizer
from interlace.text.loading import load_tokenizer as load_tokenizer
from interlace.text.tokenizer import Tokenizer as Tokenizer
from interlace.text.utf8 import Utf8Stream as Utf8Stream
from interlace.text.utf8 import decode_utf8 as decode_utf8

__all__ = ["ByteTokenizer", "Tokenizer", "Utf8Stream", "decode_utf8", "load_tokenizer"]
