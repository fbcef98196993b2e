// P and Q on the card. One thread sums one column, 16 bytes wide, over all chunks of a piece of work (a "unit"); some
// hundred threads, a "worker", share a unit. How a unit is described: `Shape` and `Unit` below, mirrored in src/cuda/shape.rs.
//
// Arithmetic: P is the XOR of the data. Q is summed by Horner's rule from the highest exponent down in GF(2^8) with
// polynomial 0x11d, four field elements to a 32-bit word.
//
// Written for NVRTC without headers; the PTX in ../ptx is generated from this file by `cargo xtask ptx`.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Terms of a shape are padded with zeroes to a multiple of this.
#define BATCH 8u
// Chunks whose loads are in flight together in one thread: many where one unit is to be fast, few where many threads are.
#define LIVE_BATCH 8u
#define BULK_BATCH 4u
// Shapes that a worker keeps at hand, and the most terms they have; their size in 16 bytes.
#define KEPT 8u
#define KEPT_TERMS 24u
#define KEPT_SIZE (8u + KEPT_TERMS / 2u)
// The shape of the unit that ends a worker.
#define EXIT_SHAPE 0xffffu

// What becomes of the sums P and Q. The numbers are part of the interface.
enum Op : u32 {
    STORE = 0,       // outputs 0 and 1 are P and Q
    RECOVER_P = 1,   // output 0 is P
    RECOVER_Q = 2,   // output 0 is a * Q
    RECOVER_PQ = 3,  // output 0 is x = P + a * (P + b * Q) with b = 2^-halvings, output 1 is P + x
    CHECK = 4,       // bit 0 of the answer: P is not zero; bit 1: Q is not zero
};

// Bits of Shape::flags.
#define ADD_P 1u     // P as it stands in memory is added to the sum
#define ADD_Q 2u     // likewise Q
#define OUT_0 4u     // output 0 is wanted
#define OUT_1 8u     // output 1 is wanted
#define ASIDE 16u    // outputs go to the unit's own place in `aside`, not to their offsets
#define NO_Q 32u     // Q is not wanted at all, exponents mean nothing
#define EVEN_GAPS 64u  // every term's gap is 1

// A chunk: where it is, in 16 bytes from the base of the unit, and the power of two that the sum so far is multiplied
// by before the chunk is added.
struct Term {
    u32 offset;
    u32 gap;
};

// 128 bytes and then the terms; each shape begins at a multiple of 128 bytes, so that no cache line holds two.
struct Shape {
    u32 op;          // low byte: Op; above it: halvings
    u32 flags;
    u32 terms;
    u32 last_gap;    // 2^last_gap multiplies the sum once all terms are in
    u32 p, q;        // what ADD_P and ADD_Q add, as Term::offset
    u32 out0, out1;  // where outputs go, as Term::offset
    u32 a[8];        // products of a, see Factor
    u32 b[8];
    u32 last[8];     // likewise 2^last_gap
    // Term terms[], padded with zeroes to whole batches
};

// One unit, 16 bytes, written by the host in one store. The sequence number stands in both halves: a reader that finds
// it in both has all of it.
struct Unit {
    u32 seq_shape;   // low half: sequence number; high half: shape, in 128 bytes from the table's start
    u32 base;        // in 512 bytes from the arena's start
    u32 columns;     // low half: length in 16 bytes
    u32 seq_check;   // low half: sequence number; high half: not zero if this worker has more to do
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

// A constant to multiply by: its products with the low three bits of a byte, the next three and the last two.
struct Factor {
    u32 low[2], middle[2], high;

    __device__ __forceinline__ Factor(const u32 *table) {
        uint4 first = *(const uint4 *)table;
        low[0] = first.x;
        low[1] = first.y;
        middle[0] = first.z;
        middle[1] = first.w;
        high = table[4];
    }
};

__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

// The entries of an eight-byte table that the four bytes of `index`, each below 8, name: those of bytes 1, 0, 3, 2.
__device__ __forceinline__ u32 look_up(u32 a, u32 b, u32 index) {
    // Byte 1 becomes index 1 with index 0 above it, byte 3 becomes index 3 with index 2 above it.
    return permute(a, b, permute(index * 0x1001u, 0, 0x31));
}

__device__ __forceinline__ u32 scale(const Factor &f, u32 v) {
    u32 swapped = look_up(f.low[0], f.low[1], v & 0x07070707u) ^
                  look_up(f.middle[0], f.middle[1], (v >> 3) & 0x07070707u) ^
                  look_up(f.high, f.high, (v >> 6) & 0x03030303u);
    return permute(swapped, 0, 0x2301);
}

__device__ __forceinline__ uint4 scale(const Factor &f, uint4 v) {
    return make_uint4(scale(f, v.x), scale(f, v.y), scale(f, v.z), scale(f, v.w));
}

// v / 2: the inverse of doubling, since 2 * 0x8e = 1.
__device__ __forceinline__ u32 halve(u32 v) { return ((v >> 1) & 0x7f7f7f7fu) ^ (signs(v << 7) & 0x8e8e8e8eu); }

// 2^gap * v. Gaps above 1 are rare: holes in the exponents, and single chunks with a high one.
__device__ __forceinline__ uint4 raise(uint4 v, u32 gap) {
    uint4 zero = make_uint4(0, 0, 0, 0);
    for (; gap; gap--) v = double_add(v, zero);
    return v;
}

// 2^-halvings * v
__device__ __forceinline__ uint4 lower(uint4 v, u32 halvings) {
    for (; halvings; halvings--) v = make_uint4(halve(v.x), halve(v.y), halve(v.z), halve(v.w));
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

__device__ __forceinline__ u32 load_word(const u32 *at) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(at) : "memory");
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

// As `data`, or zeroes where `wanted` is false; without a branch, so that many loads leave together.
template <bool LIVE>
__device__ __forceinline__ uint4 data_if(bool wanted, const uint4 *at) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (LIVE)
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
                     "@p ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                     : "l"(at), "r"((u32)wanted)
                     : "memory");
    else
        asm volatile("{ .reg .pred p; setp.ne.u32 p, %5, 0;\n"
                     "@p ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4]; }"
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                     : "l"(at), "r"((u32)wanted));
    return v;
}

__device__ __forceinline__ void put(uint4 *at, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// Adds up to B terms of C columns, `step` apart, to the sums. Shapes are padded to whole batches, so that terms are read in
// pairs without a question. EVEN: every gap is 1.
template <bool LIVE, u32 B, u32 C, bool Q, bool EVEN>
__device__ __forceinline__ void add_batch(const Term *terms, u32 count, const uint4 *column, u32 step, u32 left,
                                          uint4 p[C], uint4 q[C]) {
    uint4 v[C][B];
#pragma unroll
    for (u32 i = 0; i < B; i += 2) {
        uint4 pair = *(const uint4 *)(terms + i);
#pragma unroll
        for (u32 j = 0; j < C; j++) {
            const uint4 *at = column + j * step;
            v[j][i] = data_if<LIVE>(i < count && j * step < left, at + pair.x);
            v[j][i + 1] = data_if<LIVE>(i + 1 < count && j * step < left, at + pair.z);
        }
    }
#pragma unroll
    for (u32 i = 0; i < B; i++) {
        if (i >= count) continue;
        const u32 gap = Q && !EVEN ? terms[i].gap : 1;
#pragma unroll
        for (u32 j = 0; j < C; j++) {
            p[j] = add(p[j], v[j][i]);
            if (!Q) continue;
            if (!EVEN && gap > 1) q[j] = raise(q[j], gap - 1);
            q[j] = !EVEN && gap == 0 ? add(q[j], v[j][i]) : double_add(q[j], v[j][i]);
        }
    }
}

// What becomes of the sums of one column, `c`. Answers as a CHECK does.
__device__ __forceinline__ u32 finish(const Shape *shape, u32 op_word, u32 flags, u32 last_gap, uint4 p, uint4 q,
                                      uint4 p_there, uint4 q_there, uint4 *out0, uint4 *out1) {
    if (last_gap) {
        if (last_gap <= 6)
            q = raise(q, last_gap);
        else
            q = scale(Factor(shape->last), q);
    }
    p = add(p, p_there);
    q = add(q, q_there);
    const u32 op = op_word & 0xff, halvings = op_word >> 8;
    if (op == CHECK)
        return (flags & OUT_0 && any(p) ? 1u : 0u) | (flags & OUT_1 && any(q) ? 2u : 0u);
    uint4 first_out = p, second_out = q;
    if (op == RECOVER_Q) first_out = scale(Factor(shape->a), q);
    if (op == RECOVER_PQ) {
        if (halvings <= 6)
            q = lower(q, halvings);
        else
            q = scale(Factor(shape->b), q);
        first_out = add(p, scale(Factor(shape->a), add(p, q)));
        second_out = add(p, first_out);
    }
    if (flags & OUT_0) put(out0, first_out);
    if (flags & OUT_1) put(out1, second_out);
    return 0;
}

template <bool LIVE, u32 B, u32 C, bool Q, bool EVEN>
__device__ __forceinline__ u32 columns_as(const Shape *shape, uint4 head, uint4 *base, uint4 *aside, u32 aside_q,
                                          u32 columns, u32 first, u32 step) {
    const u32 op = head.x, flags = head.y, count = head.z, last_gap = Q ? head.w : 0;
    const uint4 places = ((const uint4 *)shape)[1];
    const Term *terms = (const Term *)(shape + 1);
    uint4 *out0 = flags & ASIDE ? aside : base + places.z;
    uint4 *out1 = flags & ASIDE ? aside + aside_q : base + places.w;
    u32 answer = 0;
    for (u32 c = first; c < columns; c += C * step) {
        const uint4 *column = base + c;
        const u32 left = columns - c;
        uint4 p[C], q[C], p_there[C], q_there[C];
#pragma unroll
        for (u32 j = 0; j < C; j++) {
            p[j] = q[j] = q_there[j] = make_uint4(0, 0, 0, 0);
            // What is in memory is asked for before the data, so that all loads of a column are on the way together.
            const uint4 *at = column + j * step;
            p_there[j] = data_if<LIVE>(flags & ADD_P && j * step < left, at + places.x);
            if (Q) q_there[j] = data_if<LIVE>(flags & ADD_Q && j * step < left, at + places.y);
        }
        for (u32 done = 0; done < count; done += B)
            add_batch<LIVE, B, C, Q, EVEN>(terms + done, count - done, column, step, left, p, q);
#pragma unroll
        for (u32 j = 0; j < C; j++) {
            if (j * step >= left) continue;
            const u32 at = c + j * step;
            answer |= finish(shape, op, flags, last_gap, p[j], q[j], p_there[j], q_there[j], out0 + at, out1 + at);
        }
    }
    return answer;
}

// Columns first, first + step, ... of a unit. Returns the answer of a CHECK for them.
template <bool LIVE, u32 B, u32 C>
__device__ __forceinline__ u32 unit_columns(const Shape *shape, uint4 *base, uint4 *aside, u32 aside_q, u32 columns,
                                            u32 first, u32 step) {
    const uint4 head = *(const uint4 *)shape;
    if (head.y & NO_Q)
        return columns_as<LIVE, B, 1, false, false>(shape, head, base, aside, aside_q, columns, first, step);
    if (head.y & EVEN_GAPS)
        return columns_as<LIVE, B, C, true, true>(shape, head, base, aside, aside_q, columns, first, step);
    return columns_as<LIVE, B, 1, true, false>(shape, head, base, aside, aside_q, columns, first, step);
}

__device__ __forceinline__ void nap(u32 ns) { asm volatile("nanosleep.u32 %0;" ::"r"(ns)); }

// Waits for all threads of the worker. A worker that is its block takes the block's own barrier; of several in a block each
// has one by number.
template <bool WHOLE>
__device__ __forceinline__ void worker_barrier(u32 local, u32 threads) {
    if (WHOLE)
        __syncthreads();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(local + 1), "r"(threads) : "memory");
}

__device__ __forceinline__ void answer_unit(u32 *at, u32 word) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

// Let so many cycles pass.
__device__ __forceinline__ void pause(u32 cycles) {
    u32 start, now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(start)::"memory");
    do asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    while (now - start < cycles);
}

// The answer of a unit that has written nothing, and so needs no fence.
__device__ __forceinline__ void answer_check(u32 *at, u32 word) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(word) : "memory");
}

// Compiled with RAIDD_PROFILE, the kernel leaves clock readings of every unit in its place aside (which encode and check do
// not use), for gpu_bench --profile to show where the time of a unit goes.
#ifdef RAIDD_PROFILE
#define STAMP(n) asm volatile("mov.u32 %0, %%clock;" : "=r"(stamp[n])::"memory")
#else
#define STAMP(n)
#endif

// What the host hands the persistent kernel of a ring.
struct Ring {
    const uint4 *units;
    u32 *done;
    const u32 *stop;   // not zero: end, whatever the ring says; looked at only when there is nothing to do
    const u8 *shapes;
    u8 *arena;
    u8 *aside;
    u32 aside_bytes;   // of a unit
    u32 log2_slots;
    u32 head;          // number of the first unit
    u32 worker;        // threads in a worker, a divisor of the block's; means nothing where the worker is the block
    u32 patience;      // looks at the ring before the first nap
    u32 spacing;       // cycles between an answer and the next question
};

// Where a shape is kept.
__device__ __forceinline__ u32 kept_at(u32 shape) { return shape / 2 % KEPT; }

// The persistent kernel of one ring. Each worker takes every `workers`-th unit, from unit number `head` on, and answers in
// `done[slot]`: sequence number, and the answer of a check above it. A worker ends at a unit of EXIT_SHAPE.
//
// One thread of a worker asks for the next unit, one question at a time: the system-wide fence before an answer waits for
// every question that is on the way, of this worker or another, so that more of them cost more than they gain.
// No fence is between finding a unit and reading its data. The data are read past all caches, after the unit (the warps
// wait at the barrier until its value is there), and were written before it.
//
// All threads of a worker come to every barrier. What thread 0 writes for the others, it writes between the barrier at the
// end of a unit and that at the start of the next, where nobody reads; shapes are kept between that and another of their own.
// WORKERS: how many a block has at most; 1 means that the worker is the block.
template <u32 WORKERS>
__device__ __forceinline__ void serve(const Ring &ring) {
    constexpr bool WHOLE = WORKERS == 1;
    __shared__ uint4 found[WORKERS];
    __shared__ u32 answers[WORKERS];
    // Shapes at hand: to fetch one again from the card's memory takes half as long as to fetch data from the host's.
    __shared__ uint4 kept[WORKERS][KEPT][KEPT_SIZE];
    // Which they are. Only thread 0 of a worker uses this.
    __shared__ u32 kept_as[WORKERS][KEPT];
    u32 hurry = 1;
#ifdef RAIDD_PROFILE
    u32 stamp[6];
#endif
    const u32 size = WHOLE ? blockDim.x : ring.worker;
    const u32 local = WHOLE ? 0 : threadIdx.x / size, thread = WHOLE ? threadIdx.x : threadIdx.x % size;
    const u32 each = WHOLE ? 1 : blockDim.x / size, workers = gridDim.x * each;
    const u32 me = blockIdx.x * each + local, slots = 1u << ring.log2_slots;
    if (thread == 0)
        for (u32 i = 0; i < KEPT; i++) kept_as[local][i] = EXIT_SHAPE;
    // The first unit that is this worker's: the slots are a multiple of the workers, so slot number and unit number give
    // the same turn.
    u32 number = ring.head + (me + workers - ring.head % workers) % workers;
    for (;; number += workers) {
        const u32 slot = number & (slots - 1);
        const u32 seq = ((number >> ring.log2_slots) + 1) & 0xffffu;
        if (thread == 0) {
            // A question sent right behind an answer is back before the host, having seen that, can have written the next
            // unit. If the host has said that more is on its way already, it is not.
            if (!hurry) pause(ring.spacing);
            STAMP(0);
            uint4 unit = load(ring.units + slot);
            u32 misses = 0;
            while ((unit.x & 0xffffu) != seq || (unit.w & 0xffffu) != seq) {
                if (++misses > ring.patience) {
                    nap(misses > 64 * ring.patience ? 4000 : 500);
                    if (load_word(ring.stop)) {
                        unit.x = EXIT_SHAPE << 16;
                        break;
                    }
                }
                STAMP(0);
                unit = load(ring.units + slot);
            }
            STAMP(1);
            hurry = unit.w >> 16;
            unit.w = kept_as[local][kept_at(unit.x >> 16)] == unit.x >> 16;
            found[local] = unit;
            answers[local] = 0;
        }
        worker_barrier<WHOLE>(local, size);
        STAMP(2);
        const uint4 unit = found[local];
        const u32 shape_at = unit.x >> 16;
        // Without an answer: after an order to stop it could be taken for that of a unit just posted here.
        if (shape_at == EXIT_SHAPE) return;
        // All threads of the worker come to the same end here.
        const uint4 *there = (const uint4 *)(ring.shapes + (u64)shape_at * 128);
        const u32 entry = kept_at(shape_at);
        const Shape *shape = (const Shape *)kept[local][entry];
        if (!unit.w) {
            const u32 terms = load(there).z;
            if (terms <= KEPT_TERMS) {
                // No further than the shape goes: what lies behind may not be written yet.
                const u32 words = 8 + (terms + BATCH - 1) / BATCH * BATCH / 2;
                for (u32 i = thread; i < words; i += size) kept[local][entry][i] = load(there + i);
                if (thread == 0) kept_as[local][entry] = shape_at;
                worker_barrier<WHOLE>(local, size);
            } else {
                shape = (const Shape *)there;
            }
        }
        uint4 *base = (uint4 *)(ring.arena + (u64)unit.y * 512);
        uint4 *aside = (uint4 *)(ring.aside + (u64)slot * ring.aside_bytes);
        const u32 columns = unit.z & 0xffffu;
        u32 answer = unit_columns<true, LIVE_BATCH, 2>(shape, base, aside, ring.aside_bytes / 32, columns, thread, size);
        STAMP(3);
        if (answer) atomicOr(&answers[local], answer);
        worker_barrier<WHOLE>(local, size);
        STAMP(4);
        if (thread == 0) {
            const u32 word = seq | answers[local] << 16;
            if ((shape->op & 0xff) == CHECK)
                answer_check(ring.done + slot, word);
            else
                answer_unit(ring.done + slot, word);
            STAMP(5);
#ifdef RAIDD_PROFILE
            for (u32 i = 0; i < 6; i++) ((volatile u32 *)aside)[i] = stamp[i];
#endif
        }
    }
}

// One worker a block.
extern "C" __global__ void __launch_bounds__(512, 1) raidd_serve(const Ring ring) { serve<1>(ring); }

// Two or four workers a block.
extern "C" __global__ void __launch_bounds__(512, 1) raidd_serve_shared(const Ring ring) { serve<4>(ring); }

// Many units at once, `count` of them, over memory of the host or of the card. A check is answered by a 1 in
// `answers[2 * unit]` where P differs and in the word behind it where Q does; the caller has set them to zero.
extern "C" __global__ void __launch_bounds__(256, 4)
    raidd_bulk(const Unit *units, u32 count, u32 *answers, const u8 *shapes, u8 *arena) {
    for (u32 u = blockIdx.x; u < count; u += gridDim.x) {
        const uint4 unit = __ldg((const uint4 *)units + u);
        const Shape *shape = (const Shape *)(shapes + (u64)(unit.x >> 16) * 128);
        uint4 *base = (uint4 *)(arena + (u64)unit.y * 512);
        u32 answer = unit_columns<false, BULK_BATCH, 1>(shape, base, 0, 0, unit.z & 0xffffu, threadIdx.x, blockDim.x);
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
