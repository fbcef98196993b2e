/* A stand-in for NVIDIA's driver library, for tests of what is said when a driver or a card is not as it should be: one
 * card that takes every call and computes nothing. FAKE_CUDA names what is wrong with it. Calls that answer nothing but
 * "done" are declared without their parameters. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, OUT_OF_MEMORY = 2, NO_DEVICE = 100, MISMATCH = 803, UNKNOWN = 999 };

static int is(const char *what)
{
	const char *wrong = getenv("FAKE_CUDA");
	return wrong && !strcmp(wrong, what);
}

int cuDriverGetVersion(int *version)
{
	*version = is("old") ? 11040 : 12040;
	return DONE;
}

int cuInit(unsigned flags)
{
	(void)flags;
	while (is("hangs"))
		pause();
	return is("no-device") ? NO_DEVICE : is("mismatch") ? MISMATCH : is("unknown") ? UNKNOWN : DONE;
}

int cuGetErrorName(int error, const char **name)
{
	switch (error) {
	case OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
	case NO_DEVICE: *name = "CUDA_ERROR_NO_DEVICE"; break;
	case MISMATCH: *name = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"; break;
	default: *name = "CUDA_ERROR_UNKNOWN";
	}
	return DONE;
}

int cuDeviceGetCount(int *count) { *count = is("endless") ? 1 << 30 : 1; return DONE; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return DONE; }
int cuDeviceGetName(char *name, int bytes, int device) { (void)device; strncpy(name, "Fake", bytes); return DONE; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 0x11 + device, 16); return DONE; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = 1ul << 34; return DONE; }

int cuDeviceGetAttribute(int *value, int which, int device)
{
	(void)device;
	switch (which) {
	case 75: *value = is("pascal") ? 6 : 8; break; /* compute capability, major */
	case 76: *value = is("pascal") ? 1 : 0; break; /* minor */
	case 16: *value = 80; break;                   /* multiprocessors */
	default: *value = 1;
	}
	return DONE;
}

int cuCtxCreate_v2(void **made, unsigned flags, int device)
{
	(void)flags, (void)device;
	*made = (void *)16;
	return is("full") || is("endless") ? OUT_OF_MEMORY : DONE;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes)
{
	*address = (unsigned long long)calloc(1, bytes);
	return *address ? DONE : OUT_OF_MEMORY;
}

int cuMemHostGetDevicePointer_v2(unsigned long long *address, void *host, unsigned flags)
{
	(void)flags;
	*address = (unsigned long long)host;
	return DONE;
}

int cuCtxGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return DONE; }
int cuEventElapsedTime(float *ms, void *from, void *to) { (void)from, (void)to; *ms = 1; return DONE; }
int cuFuncGetAttribute(int *value, int which, void *kernel) { (void)which, (void)kernel; *value = 32; return DONE; }

static int handle(void **made) { *made = (void *)16; return DONE; }
int cuEventCreate(void **made, unsigned flags) { (void)flags; return handle(made); }
int cuModuleGetFunction(void **made, void *module, const char *name) { (void)module, (void)name; return handle(made); }
int cuModuleLoadData(void **made, const void *image) { (void)image; return handle(made); }
int cuStreamCreateWithPriority(void **made, unsigned flags, int priority) { (void)flags, (void)priority; return handle(made); }

int cuCtxDestroy_v2() { return DONE; }
int cuCtxSetCurrent() { return DONE; }
int cuEventDestroy_v2() { return DONE; }
int cuEventQuery() { return DONE; }
int cuEventRecord() { return DONE; }
int cuLaunchKernel() { return DONE; }
int cuMemFree_v2() { return DONE; }
int cuMemHostRegister_v2() { return DONE; }
int cuMemHostUnregister() { return DONE; }
int cuMemcpyAsync() { return DONE; }
int cuMemsetD32Async() { return DONE; }
int cuStreamDestroy_v2() { return DONE; }
int cuStreamQuery() { return DONE; }
int cuStreamSynchronize() { return DONE; }
int cuStreamWaitEvent() { return DONE; }
