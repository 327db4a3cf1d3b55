// A CUDA runtime and NCCL without a device, under the real CUDA build of torch. Kernels do nothing, memory is
// reserved and reads as zeros, and the device lags behind the host: work is done when the host waits for it.
//
// Streams, events and the host have vector clocks. rehearsal_access tells of a read or write of memory by a
// stream; it is an error unless it happens after all others that touch the same bytes and conflict with it.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda_runtime_api.h>

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

// --- state ---------------------------------------------------------------------------------

using Clock = std::map<int, long>;  // number of the last operation known of, by stream

struct Stream {
  int id = 0, device = 0, priority = 0;
  Clock clock;
};

struct Event {
  int device = 0;
  unsigned flags = 0;
  Clock clock;
  std::chrono::steady_clock::time_point at;
};

struct Block {
  size_t n_bytes;
  bool on_device;
  int device;
};

struct Use {  // of the bytes from its key in the map to `end`
  uintptr_t end;
  int writer;
  long write;
  Clock reads;
};

constexpr size_t TOTAL_BYTES = 85'000'000'000, CONTEXT_BYTES = 560'000'000;
constexpr int MAX_DEVICES = 16;

std::recursive_mutex mutex;
int n_devices = 1, own_device = -1;
bool is_reserved = false, is_in_iteration = false;
size_t used_bytes[MAX_DEVICES];
std::set<int> contexts;
std::map<uintptr_t, Block> blocks;
std::map<uintptr_t, Use> uses;
std::map<int, Stream*> default_streams;  // by device
std::set<Stream*> streams;
Clock host;
std::map<std::string, long> counts;
void (*on_failure)(const char*, const char*) = nullptr;
thread_local int current = 0;
thread_local cudaError_t last = cudaSuccess;

using Lock = std::lock_guard<std::recursive_mutex>;

cudaError_t fails(cudaError_t error) { return last = error; }

void count(const char* name) {
  Lock lock(mutex);
  ++counts[name];
}

// Tells Python, outside of the lock: it may wait for the interpreter, which another thread holds.
void report(const char* kind, const std::string& what) {
  count(kind);
  if (on_failure) on_failure(kind, what.c_str());
}

void join(Clock& clock, const Clock& other) {
  for (auto [stream, n] : other) clock[stream] = std::max(clock[stream], n);
}

bool covers(const Clock& clock, const Clock& other) {
  for (auto [stream, n] : other) {
    auto it = clock.find(stream);
    if (it == clock.end() || it->second < n) return false;
  }
  return true;
}

Stream* new_stream(int priority) {
  auto* stream = new Stream{int(streams.size()) + 1, current, priority, {}};
  streams.insert(stream);
  return stream;
}

Stream* stream_of(cudaStream_t handle) {
  if (handle && handle != cudaStreamLegacy && handle != cudaStreamPerThread) return (Stream*)handle;
  auto& stream = default_streams[current];
  if (!stream) stream = new_stream(0);
  return stream;
}

// Any call that needs a context makes one on the current device of the thread.
void touch(const char* api) {
  bool is_foreign = false;
  {
    Lock lock(mutex);
    is_foreign = contexts.insert(current).second && own_device >= 0 && current != own_device;
  }
  if (is_foreign) report("foreign context", std::string(api) + " on device " + std::to_string(current));
}

void launch(cudaStream_t handle) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  join(stream->clock, host);
  ++stream->clock[stream->id];
}

void wait(const char* api, const Clock& clock) {
  bool is_late = false;
  {
    Lock lock(mutex);
    is_late = !covers(host, clock) && is_in_iteration;
    join(host, clock);
  }
  if (is_late) report("host waits in an iteration", api);
}

const Block* block_of(const void* pointer) {
  auto it = blocks.upper_bound((uintptr_t)pointer);
  if (it == blocks.begin()) return nullptr;
  --it;
  return (uintptr_t)pointer < it->first + it->second.n_bytes ? &it->second : nullptr;
}

bool on_device(const void* pointer) {
  Lock lock(mutex);
  const Block* block = block_of(pointer);
  return block && block->on_device;
}

bool is_pinned(const void* pointer) {
  Lock lock(mutex);
  const Block* block = block_of(pointer);
  return block && !block->on_device;
}

cudaError_t reserve(void** pointer, size_t n_bytes, bool is_device) {
  void* memory = mmap(nullptr, n_bytes ? n_bytes : 1, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return fails(cudaErrorMemoryAllocation);
  blocks[(uintptr_t)memory] = {n_bytes, is_device, current};
  *pointer = memory;
  return cudaSuccess;
}

void release(void* pointer) {
  Lock lock(mutex);
  auto it = blocks.find((uintptr_t)pointer);
  if (it == blocks.end()) return;
  if (it->second.on_device) used_bytes[it->second.device] -= it->second.n_bytes;
  auto first = uses.lower_bound(it->first), end = uses.lower_bound(it->first + it->second.n_bytes);
  uses.erase(first, end);
  munmap(pointer, it->second.n_bytes);
  blocks.erase(it);
}

// Cuts the uses at an address, so that none reaches over it.
void cut(uintptr_t address) {
  auto it = uses.upper_bound(address);
  if (it == uses.begin()) return;
  --it;
  if (it->first == address || it->second.end <= address) return;
  Use rest = it->second;
  it->second.end = address;
  uses[address] = rest;
}

void access(Stream* stream, const void* pointer, size_t n_bytes, bool is_write) {
  if (!n_bytes || !on_device(pointer)) return;
  const char* failure = nullptr;
  {
    Lock lock(mutex);
    uintptr_t begin = (uintptr_t)pointer, end = begin + n_bytes;
    const Clock& clock = stream->clock;
    long now = clock.count(stream->id) ? clock.at(stream->id) : 0;
    cut(begin);
    cut(end);
    uintptr_t at = begin;
    for (auto it = uses.lower_bound(begin); it != uses.end() && it->first < end;) {
      Use& use = it->second;
      if (use.writer && !covers(clock, {{use.writer, use.write}}))
        failure = is_write ? "overwritten before its writer is done" : "read before it is written";
      if (is_write && !covers(clock, use.reads)) failure = "overwritten before its reader is done";
      if (is_write) {
        it = uses.erase(it);
        continue;
      }
      if (it->first > at) uses[at] = {it->first, 0, 0, {{stream->id, now}}};
      use.reads[stream->id] = now;
      at = use.end;
      ++it;
    }
    if (is_write)
      uses[begin] = {end, stream->id, now, {}};
    else if (at < end)
      uses[at] = {end, 0, 0, {{stream->id, now}}};
  }
  if (failure) report("race", failure);
}

cudaError_t copy(void* to, const void* from, size_t n_bytes, cudaStream_t handle, bool is_async) {
  touch("cudaMemcpy");
  bool to_device = on_device(to), from_device = on_device(from);
  launch(handle);
  Stream* stream = stream_of(handle);
  if (from_device) access(stream, from, n_bytes, false);
  if (to_device) access(stream, to, n_bytes, true);
  if (!to_device && !from_device) memcpy(to, from, n_bytes);
  if (!to_device && from_device) memset(to, n_bytes > 8 ? 0x40 : 0, n_bytes);  // finite, and counts above zero
  bool is_paged = (to_device && !from_device && !is_pinned(from)) ||
                  (from_device && !to_device && !is_pinned(to));
  if (!is_async || is_paged) wait(is_async ? "copy of pageable memory" : "cudaMemcpy", stream->clock);
  return cudaSuccess;
}

const char* name_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "not ready";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    default: return "not supported without a device";
  }
}

}  // namespace

extern "C" {

// --- the rehearsal -------------------------------------------------------------------------

void rehearsal_listen(void (*callback)(const char*, const char*)) { on_failure = callback; }
void rehearsal_own_device(int device) { own_device = device; }
void rehearsal_reserved(int value) { is_reserved = value; }
void rehearsal_iteration(int value) { is_in_iteration = value; }
void rehearsal_launch(void* stream) { launch((cudaStream_t)stream); }
void rehearsal_access(void* stream, void* pointer, size_t n_bytes, int is_write) {
  Stream* s;
  {
    Lock lock(mutex);
    s = stream_of((cudaStream_t)stream);
  }
  access(s, pointer, n_bytes, is_write);
}
void rehearsal_counts(void (*visit)(const char*, long)) {
  for (auto& [name, n] : counts) visit(name.c_str(), n);
}
int rehearsal_unknown(const char* name) {
  fprintf(stderr, "rehearsal: %s was called, which is not rehearsed\n", name);
  return cudaErrorNotSupported;
}

// --- devices -------------------------------------------------------------------------------

__attribute__((constructor)) static void start() {
  if (const char* n = getenv("REHEARSAL_DEVICES")) n_devices = atoi(n);
}
cudaError_t cudaGetDeviceCount(int* n) { *n = n_devices; return cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { *device = current; return cudaSuccess; }
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= n_devices) return fails(cudaErrorInvalidDevice);
  current = device;
  touch("cudaSetDevice");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  static const std::map<int, int> values = {
      {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrMultiProcessorCount, 132},
      {cudaDevAttrMaxSharedMemoryPerBlock, 49152}, {cudaDevAttrMaxSharedMemoryPerBlockOptin, 232448},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, 233472}, {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048}, {cudaDevAttrWarpSize, 32},
      {cudaDevAttrMaxBlockDimX, 1024}, {cudaDevAttrMaxBlockDimY, 1024},
      {cudaDevAttrMaxGridDimX, 2147483647}, {cudaDevAttrMaxGridDimY, 65535},
      {cudaDevAttrMaxGridDimZ, 65535}};
  auto it = values.find(attribute);
  *value = it == values.end() ? 0 : it->second;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  memset(p, 0, sizeof *p);
  snprintf(p->name, sizeof p->name, "no H100");
  p->totalGlobalMem = TOTAL_BYTES;
  p->major = 9;
  p->multiProcessorCount = 132;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsPerBlock = 1024;
  p->maxBlocksPerMultiProcessor = 32;
  p->warpSize = 32;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->l2CacheSize = 50 << 20;
  p->textureAlignment = 512;
  p->unifiedAddressing = p->canMapHostMemory = p->managedMemory = p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  p->pciBusID = 10 + device;
  for (int i = 0; i < 16; ++i) p->uuid.bytes[i] = char(17 * i + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int n, int device) {
  snprintf(text, n, "0000:%02x:00.0", 10 + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { *can = 1; return cudaSuccess; }
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { *version = 13000; return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() {
  touch("cudaDeviceSynchronize");
  Clock clock;
  {
    Lock lock(mutex);
    for (Stream* stream : streams) join(clock, stream->clock);
  }
  wait("cudaDeviceSynchronize", clock);
  return cudaSuccess;
}

// --- memory --------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** pointer, size_t n_bytes) {
  touch("cudaMalloc");
  if (is_reserved) report("allocation after memory was reserved", std::to_string(n_bytes) + " bytes");
  Lock lock(mutex);
  ++counts["cudaMalloc"];
  if (used_bytes[current] + n_bytes + CONTEXT_BYTES > TOTAL_BYTES) return fails(cudaErrorMemoryAllocation);
  used_bytes[current] += n_bytes;
  return reserve(pointer, n_bytes, true);
}
cudaError_t cudaFree(void* pointer) {
  touch("cudaFree");
  if (!pointer) return cudaSuccess;
  cudaDeviceSynchronize();
  release(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t n_bytes, unsigned) {
  touch("cudaHostAlloc");
  Lock lock(mutex);
  ++counts[is_in_iteration ? "pinned allocation in an iteration" : "pinned allocation"];
  return reserve(pointer, n_bytes, false);
}
cudaError_t cudaHostRegister(void* pointer, size_t n_bytes, unsigned) {
  touch("cudaHostRegister");
  Lock lock(mutex);
  counts["registered bytes"] += n_bytes;
  blocks[(uintptr_t)pointer] = {n_bytes, false, current};
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) { release(pointer); return cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* n_free, size_t* total) {
  touch("cudaMemGetInfo");
  *total = TOTAL_BYTES;
  *n_free = TOTAL_BYTES - CONTEXT_BYTES - used_bytes[current];
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Lock lock(mutex);
  const Block* block = block_of(pointer);
  memset(attributes, 0, sizeof *attributes);
  attributes->type = !block ? cudaMemoryTypeUnregistered
                            : block->on_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = block ? block->device : -2;
  attributes->devicePointer = (void*)pointer;
  attributes->hostPointer = block && !block->on_device ? (void*)pointer : nullptr;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, n, stream, true);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t n, cudaMemcpyKind) {
  return copy(to, from, n, nullptr, false);
}
cudaError_t cudaMemsetAsync(void* pointer, int, size_t n_bytes, cudaStream_t handle) {
  touch("cudaMemsetAsync");
  launch(handle);
  access(stream_of(handle), pointer, n_bytes, true);
  return cudaSuccess;
}

// --- streams and events --------------------------------------------------------------------

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned, int priority) {
  touch("cudaStreamCreate");
  Lock lock(mutex);
  *handle = (cudaStream_t)new_stream(priority);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  *priority = stream_of(stream)->priority;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  Lock lock(mutex);
  return covers(host, stream_of(stream)->clock) ? cudaSuccess : fails(cudaErrorNotReady);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  touch("cudaStreamSynchronize");
  wait("cudaStreamSynchronize", stream_of(stream)->clock);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Lock lock(mutex);
  Stream* stream = stream_of(handle);
  if (stream->device != current) return fails(cudaErrorInvalidResourceHandle);
  join(stream->clock, ((Event*)event)->clock);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long*,
                                     cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
  function(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  touch("cudaEventCreate");
  *event = (cudaEvent_t) new Event{current, flags, {}, {}};
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { delete (Event*)event; return cudaSuccess; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned) {
  auto* event = (Event*)handle;
  if (event->device != current) return fails(cudaErrorInvalidResourceHandle);
  launch(stream);
  Lock lock(mutex);
  event->clock = stream_of(stream)->clock;
  event->at = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  touch("cudaEventQuery");
  Lock lock(mutex);
  // Between iterations the device is done some day: watchdogs of torch wait for that.
  bool is_done = !is_in_iteration || covers(host, ((Event*)event)->clock);
  return is_done ? cudaSuccess : fails(cudaErrorNotReady);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  touch("cudaEventSynchronize");
  wait("cudaEventSynchronize", ((Event*)event)->clock);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  auto *a = (Event*)start, *b = (Event*)end;
  if ((a->flags | b->flags) & cudaEventDisableTiming) return fails(cudaErrorInvalidResourceHandle);
  *ms = std::chrono::duration<float, std::milli>(b->at - a->at).count();
  return cudaSuccess;
}

// --- kernels -------------------------------------------------------------------------------

static cudaError_t run_kernel(cudaStream_t handle) {
  touch("cudaLaunchKernel");
  count("kernel");
  {
    Lock lock(mutex);
    if (stream_of(handle)->device != current) return fails(cudaErrorInvalidResourceHandle);
  }
  launch(handle);
  return cudaSuccess;
}
cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void**, size_t, cudaStream_t stream) {
  bool is_valid = grid.x && grid.y && grid.z && grid.y <= 65535 && grid.z <= 65535 && block.x &&
                  block.x * block.y * block.z <= 1024;
  return is_valid ? run_kernel(stream) : fails(cudaErrorInvalidConfiguration);
}
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) {
  return run_kernel(stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void*, void**) {
  return run_kernel(config->stream);
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = (cudaKernel_t)function;
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t n,
                               cudaStream_t stream) {
  return cudaLaunchKernel((const void*)kernel, grid, block, arguments, n, stream);
}
static thread_local struct { dim3 grid, block; size_t n; void* stream; } pushed;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t n, CUstream_st* stream) {
  pushed.grid = grid, pushed.block = block, pushed.n = n, pushed.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* n, void* stream) {
  *grid = pushed.grid, *block = pushed.block, *n = pushed.n, *(void**)stream = pushed.stream;
  return cudaSuccess;
}
void** __cudaRegisterFatBinary(void*) { static void* handle[4]; return handle; }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  memset(attributes, 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  attributes->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void*, int, size_t) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void*, int, size_t, unsigned) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
  *pointer = (void*)symbol;
  return cudaSuccess;
}

// --- errors and the driver -----------------------------------------------------------------

const char* cudaGetErrorName(cudaError_t error) { return name_of(error); }
const char* cudaGetErrorString(cudaError_t error) { return name_of(error); }
cudaError_t cudaGetLastError() { return std::exchange(last, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last; }
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }
static int does_nothing() { return 0; }
static int describes_nothing(int, const char** text) { *text = "no device"; return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = strstr(name, "ErrorString") ? (void*)describes_nothing : (void*)does_nothing;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* is_active) {
  Lock lock(mutex);
  *flags = 0;
  *is_active = contexts.count(device);
  return 0;
}
int cuGetErrorString(int, const char** text) { *text = "no device"; return 0; }
int cuCtxGetCurrent(void** context) { *context = contexts.count(current) ? (void*)1 : nullptr; return 0; }

// --- cuBLAS --------------------------------------------------------------------------------

int cublasCreate_v2(void** handle) { *handle = (void*)1; return 0; }
int cublasGetMathMode(void*, int* mode) { *mode = 0; return 0; }
int cublasGetPointerMode_v2(void*, int* mode) { *mode = 0; return 0; }
size_t cublasLtGetVersion() { return 130100; }
int cublasLtMatmulDescCreate(void** made) { *made = (void*)1; return 0; }
int cublasLtMatmulPreferenceCreate(void** made) { *made = (void*)1; return 0; }
int cublasLtMatrixLayoutCreate(void** made) { *made = (void*)1; return 0; }
int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int, void*, int* n) {
  *n = 1;
  return 0;
}

// --- NCCL ----------------------------------------------------------------------------------

struct UniqueId { char bytes[128]; };
struct Communicator { int n_ranks, rank; };
static std::set<std::tuple<void*, int, int>> connected;  // communicator, operation, peer

static int open_communicator(void** made, int n_ranks, int rank) {
  if (is_reserved) report("late communicator", std::to_string(n_ranks) + " ranks");
  count("communicator");
  *made = new Communicator{n_ranks, rank};
  return 0;
}
static size_t width(int type) {
  static const size_t widths[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return widths[type];
}
enum Operation { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, SEND, RECEIVE };
static int transfer(Operation operation, void* communicator, int peer, const void* from, size_t n_from,
                    void* to, size_t n_to, int type, cudaStream_t handle) {
  bool is_new;
  Stream* stream;
  {
    Lock lock(mutex);
    is_new = connected.insert({communicator, operation, peer}).second;
    stream = stream_of(handle);
    ++counts["operation of NCCL"];
  }
  if (is_new && is_reserved) report("late communicator", "first use of a connection");
  launch(handle);
  if (from) access(stream, from, n_from * width(type), false);
  if (to) access(stream, to, n_to * width(type), true);
  return 0;
}
int ncclGetVersion(int* version) { *version = 22809; return 0; }
int ncclGetUniqueId(UniqueId* id) {
  std::random_device random;
  for (char& byte : id->bytes) byte = char(random());
  return 0;
}
int ncclCommInitRankConfig(void** made, int n, UniqueId, int rank, void*) { return open_communicator(made, n, rank); }
int ncclCommInitRank(void** made, int n, UniqueId, int rank) { return open_communicator(made, n, rank); }
int ncclCommInitRankScalable(void** made, int n, int rank, int, UniqueId*, void*) {
  return open_communicator(made, n, rank);
}
int ncclCommFinalize(void*) { return 0; }
int ncclCommDestroy(void*) { return 0; }
int ncclCommAbort(void*) { return 0; }
int ncclCommGetAsyncError(void*, int* error) { *error = 0; return 0; }
int ncclCommCount(void* communicator, int* n) { *n = ((Communicator*)communicator)->n_ranks; return 0; }
int ncclCommUserRank(void* communicator, int* rank) { *rank = ((Communicator*)communicator)->rank; return 0; }
int ncclGroupStart() { return 0; }
int ncclGroupEnd() { return 0; }
const char* ncclGetErrorString(int) { return "no error"; }
const char* ncclGetLastError(void*) { return "no error"; }
int ncclSend(const void* from, size_t n, int type, int peer, void* communicator, cudaStream_t stream) {
  return transfer(SEND, communicator, peer, from, n, nullptr, 0, type, stream);
}
int ncclRecv(void* to, size_t n, int type, int peer, void* communicator, cudaStream_t stream) {
  return transfer(RECEIVE, communicator, peer, nullptr, 0, to, n, type, stream);
}
int ncclAllReduce(const void* from, void* to, size_t n, int type, int, void* communicator, cudaStream_t stream) {
  return transfer(ALL_REDUCE, communicator, 0, from, n, to, n, type, stream);
}
int ncclReduceScatter(const void* from, void* to, size_t n, int type, int, void* communicator, cudaStream_t stream) {
  size_t n_ranks = ((Communicator*)communicator)->n_ranks;
  return transfer(REDUCE_SCATTER, communicator, 0, from, n * n_ranks, to, n, type, stream);
}
int ncclAllGather(const void* from, void* to, size_t n, int type, void* communicator, cudaStream_t stream) {
  size_t n_ranks = ((Communicator*)communicator)->n_ranks;
  return transfer(ALL_GATHER, communicator, 0, from, n, to, n * n_ranks, type, stream);
}
}
