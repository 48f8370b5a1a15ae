/* DPDK's ring between two cores, single producer and single consumer, as `handoff_bench` drives every queue: moves
 * numbers in batches, checks that all arrive in order, and prints cycles for each element and how often the scheduler took
 * a core away meanwhile.
 *
 *   gcc -O3 -march=native -DALLOW_EXPERIMENTAL_API -include rte_config.h -o rte_ring rte_ring.c \
 *       $(pkg-config --cflags libdpdk) -lrte_ring -lrte_eal -lpthread
 *   ./rte_ring ELEMENT_BYTES CAPACITY BATCH ELEMENTS PRODUCER_CPU CONSUMER_CPU
 *
 * Limits: elements of 4 or 8 bytes; no EAL, so the ring lies in ordinary memory, as ours does.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <rte_ring.h>
#include <rte_ring_elem.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <x86intrin.h>

#define BATCH_MAX 256

static struct rte_ring *ring;
static unsigned element_bytes, capacity, batch, elements;
static int cpus[2];
static pthread_barrier_t start_line;
static uint64_t start;

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static uint64_t tsc(void)
{
    _mm_lfence();
    return __rdtsc();
}

/* One copy of the loops for each size of element, as the size is a constant in every user of the ring. */
#define LOOPS(NAME, TYPE)                                                                        \
    static void produce_##NAME(void)                                                             \
    {                                                                                            \
        TYPE stage[BATCH_MAX];                                                                   \
        for (unsigned next = 0; next < elements; next += batch) {                                \
            for (unsigned i = 0; i < batch; i++)                                                 \
                stage[i] = next + i;                                                             \
            while (rte_ring_sp_enqueue_bulk_elem(ring, stage, sizeof(TYPE), batch, NULL) == 0)   \
                _mm_pause();                                                                     \
        }                                                                                        \
    }                                                                                            \
    static void consume_##NAME(void)                                                             \
    {                                                                                            \
        TYPE out[BATCH_MAX];                                                                     \
        for (unsigned next = 0; next < elements;) {                                              \
            unsigned count = rte_ring_sc_dequeue_burst_elem(ring, out, sizeof(TYPE), batch, NULL); \
            TYPE wrong = 0;                                                                      \
            if (count == 0)                                                                      \
                _mm_pause();                                                                     \
            for (unsigned i = 0; i < count; i++)                                                 \
                wrong |= out[i] ^ (TYPE)(next + i);                                              \
            if (wrong != 0) {                                                                    \
                fprintf(stderr, "rte_ring: lost or reordered near %u\n", next);                  \
                exit(1);                                                                         \
            }                                                                                    \
            next += count;                                                                       \
        }                                                                                        \
    }
LOOPS(u32, uint32_t)
LOOPS(u64, uint64_t)

static void *producer(void *unused)
{
    (void)unused;
    pin(cpus[0]);
    pthread_barrier_wait(&start_line);
    start = tsc();
    element_bytes == 4 ? produce_u32() : produce_u64();
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: %s ELEMENT_BYTES CAPACITY BATCH ELEMENTS PRODUCER_CPU CONSUMER_CPU\n", argv[0]);
        return 2;
    }
    element_bytes = atoi(argv[1]);
    capacity = atoi(argv[2]);
    batch = atoi(argv[3]);
    elements = atoi(argv[4]);
    cpus[0] = atoi(argv[5]);
    cpus[1] = atoi(argv[6]);
    if ((element_bytes != 4 && element_bytes != 8) || batch < 1 || batch > BATCH_MAX || elements % batch != 0) {
        fprintf(stderr, "rte_ring: elements of 4 or 8 bytes, in whole batches of 1 to %d\n", BATCH_MAX);
        return 2;
    }
    /* EXACT_SZ: all of the capacity can be used, as in the other queues. */
    unsigned slots = rte_align32pow2(capacity + 1);
    ssize_t bytes = rte_ring_get_memsize_elem(element_bytes, slots);
    ring = bytes > 0 ? aligned_alloc(RTE_CACHE_LINE_SIZE, RTE_ALIGN_CEIL(bytes, RTE_CACHE_LINE_SIZE)) : NULL;
    if (ring == NULL ||
        rte_ring_init(ring, "bench", capacity, RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ) != 0) {
        fprintf(stderr, "rte_ring: no ring of %u slots\n", capacity);
        return 1;
    }
    pthread_barrier_init(&start_line, NULL, 2);
    pthread_t thread;
    if (pthread_create(&thread, NULL, producer, NULL) != 0)
        return 1;
    pin(cpus[1]);
    struct rusage before, after;
    pthread_barrier_wait(&start_line);
    getrusage(RUSAGE_SELF, &before);
    element_bytes == 4 ? consume_u32() : consume_u64();
    uint64_t end = tsc();
    getrusage(RUSAGE_SELF, &after);
    pthread_join(thread, NULL);
    printf("%f %ld\n", (double)(end - start) / elements, after.ru_nivcsw - before.ru_nivcsw);
    return 0;
}
