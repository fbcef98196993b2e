// P and Q on the card. One thread sums one column, 16 bytes wide, over all chunks of a piece of work (a "unit"); 256
// threads, a "worker", share a unit. How a unit is described: `Shape` and `Unit` below, mirrored in src/cuda/shape.rs.
//
// Arithmetic: P is the XOR of the data. Q is summed by Horner's rule from the highest exponent down in GF(2^8) with
// polynomial 0x11d, four field elements to a 32-bit word.
//
// Written for NVRTC without headers; the PTX in ../ptx is generated from this file by `cargo xtask ptx`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Threads in a worker.
#define WORKER 256u
// Looks at the ring that are on the way together.
#define QUESTIONS 4
// Chunks whose loads are in flight together in one thread.
#define BATCH 8u
// The shape of the unit that ends a worker.
#define EXIT_SHAPE 0xffffu

// What becomes of the sums P and Q. The numbers are part of the interface.
enum Op : u32 {
    STORE = 0,       // outputs 0 and 1 are P and Q
    RECOVER_P = 1,   // output 0 is P
    RECOVER_Q = 2,   // output 0 is a * Q
    RECOVER_PQ = 3,  // output 0 is x = a * P + b * Q, output 1 is P + x
    CHECK = 4,       // bit 0 of the answer: P is not zero; bit 1: Q is not zero
};

// Bits of Shape::flags.
#define ADD_P 1u     // P as it stands in memory is added to the sum
#define ADD_Q 2u     // likewise Q
#define OUT_0 4u     // output 0 is wanted
#define OUT_1 8u     // output 1 is wanted
#define ASIDE 16u    // outputs go to the unit's own place in `aside`, not to their offsets
#define NO_Q 32u     // Q is not wanted at all, exponents mean nothing

// A chunk: where it is, in 16 bytes from the base of the unit, and the power of two that the sum so far is multiplied
// by before the chunk is added.
struct Term {
    u32 offset;
    u32 gap;
};

// 128 bytes and then the terms; each shape begins at a multiple of 128 bytes, so that no cache line holds two.
struct Shape {
    u32 op;
    u32 flags;
    u32 terms;
    u32 last_gap;    // 2^last_gap multiplies the sum once all terms are in
    u32 p, q;        // what ADD_P and ADD_Q add, as Term::offset
    u32 out0, out1;  // where outputs go, as Term::offset
    u32 a[8];        // a * 2^k in each of the four bytes, k = 0..7
    u32 b[8];
    u32 last[8];     // likewise 2^last_gap
    // Term terms[]
};

// One unit, 16 bytes, written by the host in one store. The sequence number stands in both halves: a reader that finds
// it in both has all of it.
struct Unit {
    u32 seq_shape;   // low half: sequence number; high half: shape, in 128 bytes from the table's start
    u32 base;        // in 512 bytes from the arena's start
    u32 columns;     // low half: length in 16 bytes
    u32 seq_check;   // low half: sequence number
};

// 0xff in each byte whose highest bit is set, else 0.
__device__ __forceinline__ u32 signs(u32 v) {
    u32 mask;
    asm("prmt.b32 %0, %1, 0, 0xba98;" : "=r"(mask) : "r"(v));
    return mask;
}

// 2 * v + d
__device__ __forceinline__ u32 double_add(u32 v, u32 d) {
    u32 reduced = (signs(v) & 0x1d1d1d1du) ^ d;
    return ((v + v) & 0xfefefefeu) ^ reduced;
}

__device__ __forceinline__ uint4 double_add(uint4 v, uint4 d) {
    return make_uint4(double_add(v.x, d.x), double_add(v.y, d.y), double_add(v.z, d.z), double_add(v.w, d.w));
}

__device__ __forceinline__ uint4 add(uint4 a, uint4 b) {
    return make_uint4(a.x ^ b.x, a.y ^ b.y, a.z ^ b.z, a.w ^ b.w);
}

__device__ __forceinline__ u32 scale(const u32 c[8], u32 v) {
    u32 r = 0;
#pragma unroll
    for (int k = 0; k < 8; k++) r ^= signs(v << (7 - k)) & __ldg(&c[k]);
    return r;
}

__device__ __forceinline__ uint4 scale(const u32 c[8], uint4 v) {
    return make_uint4(scale(c, v.x), scale(c, v.y), scale(c, v.z), scale(c, v.w));
}

// 2^gap * v. Gaps above 1 are rare: holes in the exponents, and single chunks with a high one.
__device__ __forceinline__ uint4 raise(uint4 v, u32 gap) {
    uint4 zero = make_uint4(0, 0, 0, 0);
    for (; gap; gap--) v = double_add(v, zero);
    return v;
}

__device__ __forceinline__ u32 any(uint4 v) { return v.x | v.y | v.z | v.w; }

// Straight from memory, past every cache that another agent's write would not reach.
__device__ __forceinline__ uint4 load(const uint4 *at) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}

// For data that nobody writes while the kernel runs: read once, so it need not stay in a cache.
__device__ __forceinline__ uint4 stream(const uint4 *at) {
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
}

__device__ __forceinline__ void put(uint4 *at, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// Data of a column: LIVE if the host changes memory while the kernel runs.
template <bool LIVE>
__device__ __forceinline__ uint4 data(const uint4 *at) {
    return LIVE ? load(at) : stream(at);
}

// The sums of one column. `column` is the column in the first chunk's frame of reference: base plus column number.
template <bool LIVE, bool Q>
__device__ __forceinline__ void sums(const Shape *shape, const uint4 *column, uint4 &p, uint4 &q) {
    const Term *terms = (const Term *)(shape + 1);
    const u32 count = __ldg(&shape->terms);
    for (u32 first = 0; first < count; first += BATCH) {
        uint4 v[BATCH];
#pragma unroll
        for (u32 i = 0; i < BATCH; i++)
            if (first + i < count) v[i] = data<LIVE>(column + __ldg(&terms[first + i].offset));
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            if (first + i < count) {
                p = add(p, v[i]);
                if (Q) {
                    u32 gap = __ldg(&terms[first + i].gap);
                    if (gap == 1)
                        q = double_add(q, v[i]);
                    else
                        q = add(raise(q, gap), v[i]);
                }
            }
        }
    }
    if (Q) {
        u32 gap = __ldg(&shape->last_gap);
        if (gap <= 6)
            q = raise(q, gap);
        else
            q = scale(shape->last, q);
    }
}

// Columns first, first + step, ... of a unit. Returns the answer of a CHECK for them.
template <bool LIVE>
__device__ __forceinline__ u32 unit_columns(const Shape *shape, uint4 *base, uint4 *aside, u32 aside_q, u32 columns,
                                            u32 first, u32 step) {
    const u32 op = __ldg(&shape->op), flags = __ldg(&shape->flags);
    u32 answer = 0;
    for (u32 c = first; c < columns; c += step) {
        uint4 *column = base + c;
        const uint4 zero = make_uint4(0, 0, 0, 0);
        // Asked for before the data, so that all loads of a column are on the way together.
        uint4 p = zero, q = zero, p_there = zero, q_there = zero;
        if (flags & ADD_P) p_there = data<LIVE>(column + __ldg(&shape->p));
        if (flags & ADD_Q) q_there = data<LIVE>(column + __ldg(&shape->q));
        if (flags & NO_Q)
            sums<LIVE, false>(shape, column, p, q);
        else
            sums<LIVE, true>(shape, column, p, q);
        p = add(p, p_there);
        q = add(q, q_there);
        if (op == CHECK) {
            answer |= any(p) && (flags & OUT_0) ? 1u : 0u;
            answer |= any(q) && (flags & OUT_1) ? 2u : 0u;
            continue;
        }
        uint4 first_out = p, second_out = q;
        if (op == RECOVER_Q) first_out = scale(shape->a, q);
        if (op == RECOVER_PQ) {
            first_out = add(scale(shape->a, p), scale(shape->b, q));
            second_out = add(p, first_out);
        }
        uint4 *out0 = flags & ASIDE ? aside + c : column + __ldg(&shape->out0);
        uint4 *out1 = flags & ASIDE ? aside + aside_q + c : column + __ldg(&shape->out1);
        if (flags & OUT_0) put(out0, first_out);
        if (flags & OUT_1) put(out1, second_out);
    }
    return answer;
}

__device__ __forceinline__ void worker_barrier(u32 id) {
    asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory");
}

__device__ __forceinline__ void nap(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

__device__ __forceinline__ bool is_unit(uint4 word, u32 seq) {
    return (word.x & 0xffffu) == seq && (word.w & 0xffffu) == seq;
}

// The persistent kernel of one ring. Each worker takes every `workers`-th unit, from unit number `head` on, and answers in
// `done[slot]`: sequence number, and the answer of a check above it. A worker ends at a unit of EXIT_SHAPE.
//
// One warp of a worker looks for the next unit; it asks again before the last question is answered, since an answer takes
// more than a microsecond where the ring is in host memory.
extern "C" __global__ void __launch_bounds__(1024, 1)
    raidd_serve(const uint4 *ring, u32 *done, const u8 *shapes, u8 *arena, u8 *aside, u32 aside_bytes, u32 log2_slots,
                u32 head, u32 patience, u32 spacing, u32 strict) {
    __shared__ uint4 found[4];
    __shared__ u32 answers[4];
    const u32 local = threadIdx.x / WORKER, lane = threadIdx.x % WORKER;
    const u32 workers = gridDim.x * (blockDim.x / WORKER);
    const u32 me = blockIdx.x * (blockDim.x / WORKER) + local;
    const u32 slots = 1u << log2_slots;
    // The first unit that is this worker's: the slots are a multiple of the workers, so slot number and unit number give
    // the same turn.
    u32 number = head + (me + workers - head % workers) % workers;
    uint4 next = make_uint4(0, 0, 0, 0);
    bool asked = false;
    for (;;) {
        const u32 slot = number & (slots - 1);
        const u32 seq = ((number >> log2_slots) + 1) & 0xffffu;
        if (lane < 32) {
            const uint4 *at = ring + slot;
            uint4 answer[QUESTIONS];
            u32 misses = 0;
            if (!asked) next = load(at);
            bool here = is_unit(next, seq);
            if (!here) {
#pragma unroll
                for (u32 i = 0; i < QUESTIONS; i++) {
                    answer[i] = load(at);
                    nap(spacing);
                }
            }
            while (!here) {
#pragma unroll
                for (u32 i = 0; i < QUESTIONS; i++) {
                    if (!here) {
                        if (is_unit(answer[i], seq)) {
                            next = answer[i];
                            here = true;
                        } else {
                            answer[i] = load(at);
                        }
                    }
                }
                if (++misses > patience) nap(misses > 16 * patience ? 4000 : 500);
            }
            if (strict) asm volatile("fence.acq_rel.sys;" ::: "memory");
            if (lane == 0) {
                found[local] = next;
                answers[local] = 0;
            }
            // Ask for the next unit now; it may be there already when this one is done.
            next = load(ring + ((number + workers) & (slots - 1)));
            asked = true;
        }
        worker_barrier(local + 1);
        const uint4 unit = found[local];
        const u32 shape_at = unit.x >> 16;
        if (shape_at == EXIT_SHAPE) {
            if (lane == 0) asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(done + slot), "r"(seq) : "memory");
            return;
        }
        const Shape *shape = (const Shape *)(shapes + (u64)shape_at * 128);
        uint4 *base = (uint4 *)(arena + (u64)unit.y * 512);
        uint4 *mine = (uint4 *)(aside + (u64)slot * aside_bytes);
        u32 answer = unit_columns<true>(shape, base, mine, aside_bytes / 32, unit.z & 0xffffu, lane, WORKER);
        if (answer) atomicOr(&answers[local], answer);
        worker_barrier(local + 1);
        if (lane == 0) {
            u32 word = seq | answers[local] << 16;
            asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(done + slot), "r"(word) : "memory");
        }
        // Nobody may write `found` and `answers` for the next unit before all have read them for this one: the barrier
        // above is after the reading of `found`; lane 0, which reads `answers`, is in the warp that writes them.
        number += workers;
    }
}

// Many units at once, `count` of them, over memory of the host or of the card. A check is answered by a 1 in
// `answers[2 * unit]` where P differs and in the word behind it where Q does; the caller has set them to zero.
extern "C" __global__ void __launch_bounds__(256, 4)
    raidd_bulk(const Unit *units, u32 count, u32 *answers, const u8 *shapes, u8 *arena) {
    for (u32 u = blockIdx.x; u < count; u += gridDim.x) {
        const uint4 unit = __ldg((const uint4 *)units + u);
        const Shape *shape = (const Shape *)(shapes + (u64)(unit.x >> 16) * 128);
        uint4 *base = (uint4 *)(arena + (u64)unit.y * 512);
        u32 answer = unit_columns<false>(shape, base, 0, 0, unit.z & 0xffffu, threadIdx.x, WORKER);
        // All who write here write the same.
        if (answer & 1) answers[2 * u] = 1;
        if (answer & 2) answers[2 * u + 1] = 1;
    }
}

// Yardsticks for measurements: read everything, and copy everything, as fast as the card can.
extern "C" __global__ void __launch_bounds__(256, 4) raidd_read(const uint4 *from, u64 columns, u32 *sink) {
    uint4 sum = make_uint4(0, 0, 0, 0);
    u64 step = (u64)gridDim.x * blockDim.x, c = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; c + 7 * step < columns; c += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = stream(from + c + i * step);
#pragma unroll
        for (int i = 0; i < 8; i++) sum = add(sum, v[i]);
    }
    for (; c < columns; c += step) sum = add(sum, stream(from + c));
    if (any(sum) == 0x12345678u) atomicOr(sink, 1u);
}

extern "C" __global__ void __launch_bounds__(256, 4) raidd_copy(const uint4 *from, uint4 *to, u64 columns) {
    u64 step = (u64)gridDim.x * blockDim.x, c = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    for (; c + 7 * step < columns; c += 8 * step) {
        uint4 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = stream(from + c + i * step);
#pragma unroll
        for (int i = 0; i < 8; i++) put(to + c + i * step, v[i]);
    }
    for (; c < columns; c += step) put(to + c, stream(from + c));
}

// A fault on purpose, for tests of what happens then.
extern "C" __global__ void raidd_trap() { asm volatile("trap;"); }
