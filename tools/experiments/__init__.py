"""The paper's comparisons, rerun: an experiment is a file here, `FINDINGS.md` their outcome."""
