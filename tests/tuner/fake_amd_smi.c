/* A stand-in for AMD's system management library: serves the devices of the file that X5TUNE_FAKE_AMD names (see
   fake_devices.h), all in one socket. The calls that are not here answer "not supported": `fake_devices.py` adds them. */
#define FILE_VARIABLE "X5TUNE_FAKE_AMD"
#define NOT_SUPPORTED 2
#define NOT_LOADED 34
#include "fake_devices.h"

typedef unsigned u32;
typedef unsigned long long u64;
#define NOT_OPEN 32

int amdsmi_init(u64 flags) {
    char ignored[128];
    int status = text(-1, "count", ignored, sizeof ignored);
    is_open += status == 0; /* as often as it was opened it has to be shut down */
    return status;
}
int amdsmi_shut_down(void) { return is_open -= is_open > 0, 0; }
int amdsmi_get_socket_handles(u32 *count, void **out) {
    if (!is_open) return NOT_OPEN;
    if (out) out[0] = (void *)64;
    return *count = 1, 0;
}
int amdsmi_get_processor_handles(void *socket, u32 *count, void **out) {
    int status = number32((void *)0, "count", count);
    for (u32 at = 0; !status && out && at < *count; at++) out[at] = (void *)(size_t)(at + 1);
    return status;
}
struct enumeration { u32 render, card, hsa, hip; char uuid[256]; };
int amdsmi_get_gpu_enumeration_info(void *h, struct enumeration *out) {
    out->render = out->card = out->hsa = ~0u;
    if (number32(h, "hip_id", &out->hip)) out->hip = ~0u;
    return copied(h, "uuid", out->uuid, sizeof out->uuid);
}
struct asic {
    char name[256]; u32 vendor; char vendor_name[256]; u32 subvendor; u64 device; u32 revision; char serial[256];
    u32 oam, units; u64 version; u32 subsystem, reserved[21];
};
int amdsmi_get_gpu_asic_info(void *h, struct asic *out) {
    memset(out, 0, sizeof *out);
    number(h, "version", &out->version);
    copied(h, "serial", out->serial, sizeof out->serial);
    return copied(h, "name", out->name, sizeof out->name);
}
struct activity { u32 gfx, umc, mm, reserved[13]; };
int amdsmi_get_gpu_activity(void *h, struct activity *out) { return number32(h, "utilisation", &out->gfx); }
int amdsmi_get_gpu_memory_total(void *h, int kind, u64 *out) { return number(h, "memory_total", out); }
int amdsmi_get_gpu_memory_usage(void *h, int kind, u64 *out) { return number(h, "memory_used", out); }
struct power { u64 socket; u32 now, average; u64 gfx, soc, memory; u32 limit; u64 reserved[18]; };
int amdsmi_get_power_info(void *h, struct power *out) {
    out->socket = ~0u;
    out->now = 0xFFFF;
    number32(h, "power_now", &out->now);
    return number32(h, "power", &out->average);
}
int amdsmi_get_temp_metric(void *h, int sensor, int metric, long long *out) {
    return number(h, sensor == 1 ? "hotspot" : "temperature", (u64 *)out);
}
struct clock { u32 now, least, most; unsigned char locked, asleep; u32 reserved[4]; };
int amdsmi_get_clock_info(void *h, int kind, struct clock *out) {
    return number32(h, kind == 0 ? "sm_clock" : "memory_clock", &out->now);
}
int amdsmi_get_energy_count(void *h, u64 *count, float *microjoules, u64 *at) {
    *microjoules = 15.259f, *at = 0;
    return number(h, "energy", count);
}
struct link { u64 bdf; u32 rate, bandwidth, kind; u64 read, written, reserved[2]; };
struct links { u32 count; struct link each[64]; u64 reserved[7]; };
int amdsmi_get_link_metrics(void *h, struct links *out) {
    int status = number(h, "link_read", &out->each[0].read);
    out->count = 2;
    out->each[1] = out->each[0];
    return status ? status : number(h, "link_written", &out->each[1].written);
}
struct pcie {
    struct { unsigned short width; u32 speed, version, slot, most; u64 reserved[9]; } fixed;
    struct { unsigned short width; u32 speed, bandwidth; u64 counts[5]; u32 recovered; u64 reserved[12]; } now;
    u64 reserved[32];
};
int amdsmi_get_pcie_info(void *h, struct pcie *out) { return number32(h, "pcie", &out->now.bandwidth); }
/* `violated` is one digit for each of: hardware, power, socket, regulator, memory; an absent key is "not told" (all ones). */
struct violations { u64 counts[15]; unsigned char active[6]; u64 by_part[8 * 64]; unsigned char active_by_part[256]; u64 more[192]; };
int amdsmi_get_violation_status(void *h, struct violations *out) {
    char found[128];
    memset(out, 0, sizeof *out);
    int status = copied(h, "violated", found, sizeof found);
    for (int at = 0; at < 5; at++) out->active[at] = status ? 0xFF : found[at] - '0';
    return status == NOT_SUPPORTED ? 0 : status;
}
/* `processes` is PID:BYTES,PID:BYTES */
struct process {
    char name[256]; u32 pid; u64 memory;
    struct { u64 gfx, encoder; u32 reserved[12]; } engine;
    struct { u64 gtt, cpu, vram; u32 reserved[10]; } held;
    char container[256]; u32 occupancy, reserved[11];
};
int amdsmi_get_gpu_process_list(void *h, u32 *count, struct process *out) {
    char found[128], *at = found;
    u32 room = *count;
    int status = copied(h, "processes", found, sizeof found);
    if (status) return status;
    for (*count = 0; *at && *count < room; (*count)++) {
        memset(&out[*count], 0, sizeof *out);
        out[*count].pid = strtoul(at, &at, 10);
        out[*count].held.vram = strtoull(at + 1, &at, 10);
        if (*at == ',') at++;
    }
    return 0;
}
