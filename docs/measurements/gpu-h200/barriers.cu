// Barriers waited on by number and count, used rightly in `right` beyond doubt and wrongly in `wrong`: does racecheck tell them apart?
//     nvcc -arch=sm_90 -o barriers barriers.cu && compute-sanitizer --tool racecheck ./barriers KERNEL
#include <cstdio>
#include <cstdlib>

__device__ void wait_for(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Each group of `size` threads: thread 0 writes a word, all wait, all read it, all wait. LATE: the second group lags behind.
// MISSING: without the second wait. PART: with a third wait, by the first warps of a group only.
template <bool LATE, bool MISSING, bool PART>
__global__ void groups(int size, int *wrong) {
    __shared__ int word[4], early[4];
    int group = threadIdx.x / size, thread = threadIdx.x % size;
    if (thread == 0) early[group] = group;
    for (int turn = 0; turn < 8; turn++) {
        if (LATE && group == 1) for (long long begin = clock64(); clock64() < begin + 20000;);
        if (thread == 0) word[group] = turn;
        wait_for(group + 1, size);
        if (word[group] != turn || (turn == 5 && early[group] != group)) atomicAdd(wrong, 1);
        if (PART && thread < size / 2) wait_for(group + 5, size / 2);
        if (!MISSING) wait_for(group + 1, size);
    }
}

int main(int, char **arguments) {
    int *wrong, host = -1;
    cudaMalloc(&wrong, 4);
    cudaMemset(wrong, 0, 4);
    switch (atoi(arguments[1])) {
        case 0: groups<false, false, false><<<4, 128>>>(128, wrong); break;  // one group, the whole block
        case 1: groups<false, false, false><<<4, 512>>>(128, wrong); break;  // four, side by side
        case 2: groups<true, false, false><<<4, 512>>>(128, wrong); break;   // one of them late
        case 3: groups<false, false, true><<<4, 512>>>(128, wrong); break;   // and a part of each waits once more
        case 4: groups<false, true, false><<<4, 512>>>(128, wrong); break;   // wrong: a wait is missing
    }
    cudaMemcpy(&host, wrong, 4, cudaMemcpyDeviceToHost);
    printf("kernel %s: %d wrong, %s\n", arguments[1], host, cudaGetErrorString(cudaGetLastError()));
}
