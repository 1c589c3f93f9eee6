"""Operations on one run: start, signal, wake, cancel, retry, extend, remove."""
