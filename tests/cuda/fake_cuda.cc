#include "fake_cuda.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace tensorlane::fake_cuda {
namespace {

[[noreturn]] void give_up(const std::string& what) {
  std::fprintf(stderr, "fake CUDA driver: %s\n", what.c_str());
  std::abort();
}

template <typename Function>
void resolve(void* library, const char* symbol, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, symbol));
  if (*function == nullptr) give_up(std::string("it has no ") + symbol);
}

void expect_success(int error, const char* what) {
  if (error != 0) give_up(std::string(what) + " returns " + std::to_string(error));
}

// All of what a control copies: `read(nullptr, 0)` returns how much there is.
template <typename Item, typename Read>
std::vector<Item> read_all(const Read& read) {
  std::vector<Item> items(read(nullptr, 0));
  items.resize(std::min(items.size(), read(items.data(), items.size())));
  return items;
}

}  // namespace

const FakeCuda& FakeCuda::get() {
  static const FakeCuda only;
  return only;
}

FakeCuda::FakeCuda() {
  const char* path = std::getenv("FAKE_CUDA_LIBRARY");
  void* library = ::dlopen(path != nullptr ? path : FAKE_CUDA_LIBRARY, RTLD_NOW);
  if (library == nullptr) give_up(::dlerror());
  // What is asked for by its soname from now on is the same one, or there was another one before.
  if (::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != library) give_up("another libcuda.so.1 is loaded");
#define TL_FAKE_CUDA_RESOLVE(name) resolve(library, "fake_cuda_" #name, &name)
  TL_FAKE_CUDA_CONTROLS(TL_FAKE_CUDA_RESOLVE);
#undef TL_FAKE_CUDA_RESOLVE
#define TL_FAKE_CUDA_RESOLVE(member, symbol, parameters) resolve(library, #symbol, &driver.member);
  TL_CUDA_ENTRY_POINTS(TL_FAKE_CUDA_RESOLVE)
  TL_CUDA_OPTIONAL_ENTRY_POINTS(TL_FAKE_CUDA_RESOLVE)
#undef TL_FAKE_CUDA_RESOLVE
  expect_success(driver.init(0), "cuInit");
}

std::vector<std::string> FakeCuda::all_violations() const {
  std::vector<std::string> texts;
  for (std::size_t index = 0; const char* text = violation(index); ++index) texts.emplace_back(text);
  return texts;
}

std::vector<FakeCudaCopy> FakeCuda::all_copies() const {
  return read_all<FakeCudaCopy>(copies);
}

std::vector<FakeCudaStream> FakeCuda::all_streams() const {
  return read_all<FakeCudaStream>(streams);
}

std::vector<std::string> FakeCuda::all_calls() const {
  const std::vector<char> text = read_all<char>(call_names);
  std::istringstream lines{std::string(text.data())};
  std::vector<std::string> names;
  for (std::string line; std::getline(lines, line);) names.push_back(line);
  return names;
}

std::string FakeCuda::leaks() const {
  std::string text;
  for (const char* what : {"streams", "events", "registered_ranges", "host_allocations", "driver_allocations",
                           "imports", "modules", "retained_contexts", "pushed_contexts"}) {
    const std::int64_t count = alive(what);
    if (count != 0) text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + what;
  }
  return text;
}

DeviceMemory::DeviceMemory(std::size_t bytes, int device, bool zeroed)
    : data_(FakeCuda::get().malloc(device, bytes)), bytes_(bytes) {
  if (data_ == nullptr) give_up("no device memory");
  if (zeroed) std::memset(data_, 0, bytes);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  free();
}

void DeviceMemory::free() {
  FakeCuda::get().free(std::exchange(data_, nullptr));
  bytes_ = 0;
}

CurrentContext::CurrentContext(int device) : device_(device) {
  const auto& driver = FakeCuda::get().driver;
  client::cuda::Context_ context = nullptr;
  expect_success(driver.context_retain(&context, device), "cuDevicePrimaryCtxRetain");
  expect_success(driver.context_push(context), "cuCtxPushCurrent");
}

// The calls fail after an error of the device, and after a reset: the test has noticed.
CurrentContext::~CurrentContext() {
  const auto& driver = FakeCuda::get().driver;
  client::cuda::Context_ context = nullptr;
  driver.context_pop(&context);
  driver.context_release(device_);
}

}  // namespace tensorlane::fake_cuda
