/* A stand-in for NVML: serves the devices of the file that X5TUNE_FAKE_NVML names (see fake_devices.h). Those below `count`
   are GPUs; the others are the MIG devices of GPU `parent`. */
#define FILE_VARIABLE "X5TUNE_FAKE_NVML"
#define NOT_SUPPORTED 3
#define NOT_LOADED 9
#include "fake_devices.h"

int nvmlInitWithFlags(unsigned flags) {
    char ignored[128];
    int status = text(-1, "count", ignored, sizeof ignored);
    is_open = status == 0 || status == 3;
    return is_open ? 0 : status;
}
int nvmlShutdown(void) { return is_open = 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { return number32((void *)0, "count", count); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = (void *)(size_t)(index + 1); return 0; }
int nvmlDeviceGetUUID(void *h, char *out, unsigned size) { return copied(h, "uuid", out, size); }
int nvmlDeviceGetName(void *h, char *out, unsigned size) { return copied(h, "name", out, size); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char found[128];
    if (!is_open) return 1;
    for (int device = 0; device < 16; device++) {
        int status = text(device, "uuid", found, sizeof found);
        if (status == 9) return 9;
        if (status || strcmp(found, uuid)) continue;
        *handle = (void *)(size_t)(device + 1);
        return text(device, "lost", found, sizeof found) == 0 ? 15 : 0;
    }
    return 6;
}
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *count) { *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned index, void **part) {
    unsigned parent;
    for (int device = 0; device < 16; device++)
        if (!number32((void *)(size_t)(device + 1), "parent", &parent) && parent + 1 == (size_t)h && !index--) {
            *part = (void *)(size_t)(device + 1);
            return 0;
        }
    return 6;
}
int nvmlDeviceGetUtilizationRates(void *h, unsigned *rates) {
    rates[1] = 0;
    return number32(h, "utilisation", rates);
}
int nvmlDeviceGetMemoryInfo(void *h, unsigned long long *memory) {
    int status = number(h, "memory_total", memory);
    return status ? status : number(h, "memory_used", memory + 2);
}
int nvmlDeviceGetPowerUsage(void *h, unsigned *out) { return number32(h, "power", out); }
int nvmlDeviceGetTemperature(void *h, int sensor, unsigned *out) { return number32(h, "temperature", out); }
int nvmlDeviceGetClockInfo(void *h, int kind, unsigned *out) {
    return number32(h, kind == 1 ? "sm_clock" : "memory_clock", out);
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *h, unsigned long long *out) { return number(h, "throttle", out); }
#ifndef OLD
struct memory { unsigned version; unsigned long long total, reserved, free, used; };
int nvmlDeviceGetMemoryInfo_v2(void *h, struct memory *memory) {
    int status = number(h, "memory_total", &memory->total);
    return status ? status : number(h, "memory_used", &memory->used);
}
struct temperature { unsigned version; int sensor, value; };
int nvmlDeviceGetTemperatureV(void *h, struct temperature *out) { return number32(h, "temperature", (unsigned *)&out->value); }
int nvmlDeviceGetTotalEnergyConsumption(void *h, unsigned long long *out) { return number(h, "energy", out); }
#endif
int nvmlDeviceGetPcieThroughput(void *h, int counter, unsigned *out) {
    return number32(h, counter == 0 ? "pcie_sent" : "pcie_received", out);
}
int nvmlDeviceGetCudaComputeCapability(void *h, int *major, int *minor) {
    unsigned found;
    int status = number32(h, "capability", &found);
    if (!status) *major = found / 10, *minor = found % 10;
    return status;
}
/* `processes` is PID:BYTES,PID:BYTES */
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void *h, unsigned *count, struct process *out) {
    char found[128], *at = found;
    unsigned room = *count;
    int status = copied(h, "processes", found, sizeof found);
    if (status) return status;
    for (*count = 0; *at; (*count)++) {
        unsigned pid = strtoul(at, &at, 10);
        unsigned long long used = strtoull(at + 1, &at, 10);
        if (*count < room) out[*count] = (struct process){pid, used, 0, 0};
        if (*at == ',') at++;
    }
    return *count > room ? 7 : 0;
}
struct field { unsigned id, scope; long long time, latency; unsigned type; int status; unsigned long long value; };
int nvmlDeviceGetFieldValues(void *h, int count, struct field *fields) {
    for (int at = 0; at < count; at++)
        fields[at].status = number(h, fields[at].id == 138 ? "nvlink_sent" : "nvlink_received", &fields[at].value);
    return 0;
}
const char *nvmlErrorString(int status) { return "a fake error"; }
