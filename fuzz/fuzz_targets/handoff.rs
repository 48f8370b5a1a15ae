//! Rings and hand-off against queues of the standard library, by the model that the property test runs too.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_ring::model::run(bytes));
