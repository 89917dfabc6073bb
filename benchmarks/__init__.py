"""What the figures of docs/performance.md are measured with: each module with a `main(argv)` is a benchmark."""
