from tests.benchmarks.referee import main

main()
