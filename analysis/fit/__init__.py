"""One scaling law per file: pure numbers in, a certified :class:`analysis.law_fit.LawFit` out."""
