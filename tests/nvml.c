/* Stands for NVIDIA's libnvidia-ml.so.1: the entry points of NVML that drfd uses (nvml.h), answered
 * from the file that DRFD_TEST_NVML names, which is read at each call. Its lines:
 *
 *     init CODE                      what initialising answers
 *     gpu PCI UUID TOTAL USED UTIL CODE [RESERVED]
 *                                    UTIL -1: not supported; CODE: what all calls answer
 *     lacks NAME CODE                what the function NAME answers
 *     proc GPU C|G PID BYTES SM [AT] BYTES -1: not available; SM -1: no sample; AT: when it was
 *                                    taken, else it is always a new one
 *     mig GPU UUID GI CI TOTAL USED  a slice; processes of it: proc with 100 * (GPU + 1) + its place
 *     hang NAME                      the function never answers
 *
 * What an H100 has answered is in data/gpus/one-nvidia-h100.jsonl, and a test compares.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned long long u64;
enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, INVALID = 2 };
struct gpu { char pci[32], uuid[96]; u64 total, used, kept; int util, code; };
struct mig { int gpu; char uuid[96]; unsigned gi, ci; u64 total, used; };
struct proc { int gpu; char kind; unsigned pid; long long bytes; int sm; u64 at; };
static struct gpu gpus[16];
static struct mig migs[16];
static struct proc procs[64];
static int gpu_count, mig_count, proc_count, init_code, answer;

/* Read the file; what the function `name` is to answer, as `answer`. */
static void look(const char *name)
{
    char line[512], word[96];
    int code;
    FILE *file = fopen(getenv("DRFD_TEST_NVML"), "r");
    gpu_count = mig_count = proc_count = init_code = answer = 0;
    while (file && fgets(line, sizeof line, file)) {
        struct gpu *gpu = gpus + gpu_count;
        struct mig *mig = migs + mig_count;
        struct proc *proc = procs + proc_count;
        gpu->kept = proc->at = 0;
        if (sscanf(line, "gpu %31s %95s %llu %llu %d %d %llu", gpu->pci, gpu->uuid, &gpu->total,
                   &gpu->used, &gpu->util, &gpu->code, &gpu->kept) >= 6)
            gpu_count++;
        else if (sscanf(line, "mig %d %95s %u %u %llu %llu", &mig->gpu, mig->uuid, &mig->gi,
                        &mig->ci, &mig->total, &mig->used) == 6)
            mig_count++;
        else if (sscanf(line, "proc %d %c %u %lld %d %llu", &proc->gpu, &proc->kind,
                        &proc->pid, &proc->bytes, &proc->sm, &proc->at) >= 5)
            proc_count++;
        else if (sscanf(line, "lacks %95s %d", word, &code) == 2 && !strcmp(word, name))
            answer = code;
        else if (sscanf(line, "hang %95s", word) == 1 && !strcmp(word, name))
            for (;;)
                pause();
        else
            sscanf(line, "init %d", &init_code);
    }
    if (file)
        fclose(file);
}

/* Handles: index + 1 of a GPU, 100 * (index + 1) + place of a slice. */
static struct gpu *gpu_of(void *handle)
{
    int number = (int)(long)handle;
    return gpus + (number >= 100 ? number / 100 : number) - 1;
}
static struct mig *mig_of(void *handle)
{
    int number = (int)(long)handle, place = number % 100, at;
    for (at = 0; number >= 100 && at < mig_count; at++)
        if (migs[at].gpu == number / 100 - 1 && place-- == 0)
            return migs + at;
    return NULL;
}
static int begin(const char *name, void *handle)
{
    look(name);
    return answer ? answer : gpu_of(handle)->code;
}
#define BEGIN(handle) do { int code = begin(__func__, handle); if (code) return code; } while (0)

int nvmlInitWithFlags(unsigned flags) { look(__func__); return init_code; }
int nvmlInit_v2(void) { look(__func__); return init_code; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "an error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { look(__func__); *count = gpu_count; return answer; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    *handle = (void *)(long)(index + 1);
    look(__func__);
    return answer;
}
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char text[32]; };
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
    BEGIN(handle);
    memset(pci, 0, sizeof *pci);
    sscanf(gpu_of(handle)->pci, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus,
             pci->device);
    snprintf(pci->text, sizeof pci->text, "%08X:%02X:%02X.0", pci->domain, pci->bus, pci->device);
    pci->id = 0x233010de;
    pci->subsystem = 0x16c110de;
    return OK;
}
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned size)
{
    BEGIN(handle);
    snprintf(uuid, size, "%s", mig_of(handle) ? mig_of(handle)->uuid : gpu_of(handle)->uuid);
    return OK;
}
struct memory { u64 total, free, used; };
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory)
{
    BEGIN(handle);
    memory->total = mig_of(handle) ? mig_of(handle)->total : gpu_of(handle)->total;
    /* Here the driver's own counts as used. */
    memory->used = mig_of(handle) ? mig_of(handle)->used : gpu_of(handle)->used;
    memory->used += gpu_of(handle)->kept;
    memory->free = memory->total - memory->used;
    return OK;
}
struct memory2 { unsigned version; u64 total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory2 *memory)
{
    BEGIN(handle);
    memory->total = mig_of(handle) ? mig_of(handle)->total : gpu_of(handle)->total;
    memory->used = mig_of(handle) ? mig_of(handle)->used : gpu_of(handle)->used;
    memory->reserved = gpu_of(handle)->kept;
    memory->free = memory->total - memory->reserved - memory->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(void *handle, unsigned rates[2])
{
    BEGIN(handle);
    rates[0] = gpu_of(handle)->util;
    return gpu_of(handle)->util < 0 ? NOT_SUPPORTED : OK;
}
struct process { unsigned pid; u64 bytes; unsigned gi, ci; };
static int list(void *handle, char kind, unsigned *count, struct process *into)
{
    unsigned at, found = 0, room = *count;
    int wanted = (int)(long)handle;
    for (at = 0; at < (unsigned)proc_count; at++) {
        struct proc *proc = procs + at;
        if ((proc->gpu < 100 ? proc->gpu + 1 : proc->gpu) != wanted || proc->kind != kind)
            continue;
        if (into && found < room)
            into[found] = (struct process){proc->pid, (u64)proc->bytes, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *into)
{
    BEGIN(handle);
    return list(handle, 'C', count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process *into)
{
    BEGIN(handle);
    return list(handle, 'G', count, into);
}
int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process *into)
{
    BEGIN(handle);
    return list(handle, 'C', count, into);
}
int nvmlDeviceGetGraphicsRunningProcesses_v2(void *handle, unsigned *count, struct process *into)
{
    BEGIN(handle);
    return list(handle, 'G', count, into);
}
struct sample { unsigned pid; u64 at_us; unsigned sm, memory, encoder, decoder; };
int nvmlDeviceGetProcessUtilization(void *handle, struct sample *into, unsigned *count, u64 since)
{
    unsigned at, found = 0;
    u64 taken;
    BEGIN(handle);
    for (at = proc_count; at-- > 0;) {
        struct proc *proc = procs + at;
        taken = proc->at ? proc->at : since + 1 + at;
        if (proc->gpu + 1 != (int)(long)handle || proc->sm < 0 || taken <= since)
            continue;
        if (into && found < *count)
            into[found] = (struct sample){proc->pid, taken, (unsigned)proc->sm, 0, 0, 0};
        found++;
    }
    if (!found)
        return NOT_FOUND;
    *count = found;
    return into ? OK : TOO_SMALL;
}
int nvmlDeviceGetMigMode(void *handle, unsigned *now, unsigned *later)
{
    int at;
    BEGIN(handle);
    *now = *later = 0;
    for (at = 0; at < mig_count; at++)
        if (migs[at].gpu == (int)(long)handle - 1)
            *now = *later = 1;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
    BEGIN(handle);
    *count = 7;
    return OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **part)
{
    BEGIN(handle);
    *part = (void *)(100 * (long)handle + (long)index);
    return mig_of(*part) ? OK : NOT_FOUND;
}
int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id)
{
    BEGIN(handle);
    *id = mig_of(handle)->gi;
    return OK;
}
int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *id)
{
    BEGIN(handle);
    *id = mig_of(handle)->ci;
    return OK;
}
