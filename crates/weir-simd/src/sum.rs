//! The sum of the words of a message, from which the Internet checksum is made (RFC 1071), by the widest additions that this processor has.
//!
//! Every x86-64 processor adds two numbers of 64 bits at once. One with AVX2 (Haswell, Zen and later) adds four: of eight words of 32 bits
//! it adds the even ones and the odd ones, each as a number of 64 bits.
//!
//! Limits: a message has less than 2^32 words. Only x86-64 has a kernel; elsewhere the compiler's additions are taken.

/// The sum of the words of a message, each as it lies in the memory of this machine.
#[inline]
pub fn sum_words(words: &[[u8; 4]]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and nothing else is asked for.
        return unsafe { sum_by_avx2(words) };
    }
    sum(words)
}

/// [`sum`] by additions of AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sum_by_avx2(words: &[[u8; 4]]) -> u64 {
    use std::arch::x86_64::{
        _mm_add_epi64, _mm_cvtsi128_si64, _mm_unpackhi_epi64, _mm256_add_epi64, _mm256_and_si256,
        _mm256_castsi256_si128, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_set1_epi64x,
        _mm256_setzero_si256, _mm256_srli_epi64,
    };
    let (rows, rest) = words.as_chunks::<8>();
    let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let low = _mm256_set1_epi64x(0xffff_ffff);
    for row in rows {
        // SAFETY: the row has the 32 bytes that are loaded, which need no alignment.
        let row = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
        even = _mm256_add_epi64(even, _mm256_and_si256(row, low));
        odd = _mm256_add_epi64(odd, _mm256_srli_epi64::<32>(row));
    }
    let four = _mm256_add_epi64(even, odd);
    let two = _mm_add_epi64(_mm256_castsi256_si128(four), _mm256_extracti128_si256::<1>(four));
    let one = _mm_add_epi64(two, _mm_unpackhi_epi64(two, two));
    _mm_cvtsi128_si64(one) as u64 + sum(rest)
}

#[inline(always)]
fn sum(words: &[[u8; 4]]) -> u64 {
    words.iter().map(|&word| u64::from(u32::from_ne_bytes(word))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_all_lengths_are_those_of_single_additions() {
        let words: Vec<[u8; 4]> =
            (0..400u32).map(|word| (!word.wrapping_mul(0x9e37_79b9)).to_ne_bytes()).collect();
        for length in 0..words.len() {
            let mut expected = 0;
            for word in &words[..length] {
                expected += u64::from(u32::from_ne_bytes(*word));
            }
            assert_eq!(sum_words(&words[..length]), expected, "{length} words");
            assert_eq!(sum(&words[..length]), expected, "{length} words");
        }
    }
}
