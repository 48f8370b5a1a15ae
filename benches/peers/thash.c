/* DPDK's Toeplitz hashes beside ours: compiled and run by `cargo run --release -p weir-core --example steer_bench`.
 * Run with one of bulk12 bulk36 soft12 soft36 it prints TSC cycles per tuple and the XOR of all hashes; bulk needs a processor
 * with GFNI and AVX-512. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <x86intrin.h>

#include <rte_thash.h>


#define TUPLES 256
#define ROUNDS 2000

static uint8_t key[40] = {
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca,
	0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b,
	0xbe, 0xac, 0x01, 0xfa };

static uint8_t tuples[TUPLES][36] __attribute__((aligned(64)));
static uint8_t *pointers[TUPLES];
static uint32_t words[TUPLES][9]; /* the same in host order, as rte_softrss_be wants them */
static uint32_t hashes[TUPLES];
static uint64_t matrices[40];
static uint32_t key_be[10];

static void bulk(int len_bytes)
{
	/* Not rte_thash_gfni_supported(): a distribution's library answers for its own build, not for this file's. */
#ifdef RTE_THASH_GFNI_DEFINED
	rte_thash_gfni_bulk(matrices, len_bytes, pointers, hashes, TUPLES);
#else
	fprintf(stderr, "thash: this processor has no GFNI with AVX-512\n");
	exit(3);
#endif
}

static void soft(int len_bytes)
{
	for (int t = 0; t < TUPLES; t++)
		hashes[t] = rte_softrss_be(words[t], len_bytes / 4, (uint8_t *)key_be);
}

static uint64_t now_cycles(void)
{
	_mm_lfence();
	uint64_t cycles = __rdtsc();
	_mm_lfence();
	return cycles;
}

int main(int argc, char **argv)
{
	const char *which = argc == 2 ? argv[1] : "";
	int len_bytes = strstr(which, "36") ? 36 : 12;
	void (*hash)(int) = strncmp(which, "bulk", 4) == 0 ? bulk : strncmp(which, "soft", 4) == 0 ? soft : NULL;
	if (hash == NULL) {
		fprintf(stderr, "usage: thash bulk12|bulk36|soft12|soft36\n");
		return 2;
	}
	/* The generator of the other side: both must print the same XOR of hashes. */
	uint32_t state = 1;
	for (int t = 0; t < TUPLES; t++) {
		pointers[t] = tuples[t];
		for (int i = 0; i < len_bytes; i++) {
			state = state * 1664525 + 1013904223;
			tuples[t][i] = state >> 24;
		}
		for (int k = 0; k < len_bytes / 4; k++) {
			memcpy(&words[t][k], &tuples[t][4 * k], 4);
			words[t][k] = rte_be_to_cpu_32(words[t][k]);
		}
	}
	rte_thash_complete_matrix(matrices, key, sizeof(key));
	rte_convert_rss_key((uint32_t *)key, key_be, sizeof(key));

	uint64_t best = UINT64_MAX;
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t start = now_cycles();
		hash(len_bytes);
		uint64_t cycles = now_cycles() - start;
		best = cycles < best ? cycles : best;
		__asm__ volatile("" : : "r"(hashes) : "memory");
	}
	uint32_t sum = 0;
	for (int t = 0; t < TUPLES; t++)
		sum ^= hashes[t];
	printf("%.3f %08x\n", (double)best / TUPLES, sum);
	return 0;
}
