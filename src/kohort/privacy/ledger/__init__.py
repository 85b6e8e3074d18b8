"""The ledger: hash-chained lines of every release and refusal, receipts, and their verification."""
