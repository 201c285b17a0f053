#include "streams.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/cuda/fake_driver.h"

namespace fake_gpu {
namespace {

// The controls of the fake driver, null without it.
struct Driver {
#define FIND(name)                   \
  decltype(&fake_cuda_##name) name = \
      reinterpret_cast<decltype(&fake_cuda_##name)>(dlsym(RTLD_DEFAULT, "fake_cuda_" #name))
  FIND(adopt);
  FIND(release);
  FIND(stream_create);
  FIND(stream_synchronize);
  FIND(streams);
  FIND(launch);
#undef FIND
};

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

// Runs function() on the stream when it comes to it; at once without a driver.
template <typename Function>
void launch(Stream stream, Function function) {
  if (driver().launch == nullptr) return function();
  auto* kept = new Function(std::move(function));
  const auto run = [](void* argument) {
    std::unique_ptr<Function> mine(static_cast<Function*>(argument));
    (*mine)();
  };
  if (driver().launch(reinterpret_cast<void*>(stream), run, kept) != 0) delete kept;
}

std::mutex lock;
std::vector<std::set<Stream>> streams;  // by device
std::vector<Stream> defaults;           // by device

Stream make_stream(int device) {
  static Stream without_driver = 0;
  const Stream made =
      driver().stream_create != nullptr ? reinterpret_cast<Stream>(driver().stream_create(device)) : ++without_driver;
  streams[device].insert(made);
  return made;
}

void make_defaults() {
  if (!defaults.empty()) return;
  streams.resize(device_count());
  for (int device = 0; device < device_count(); ++device) {
    defaults.push_back(device == 0 ? 0 : make_stream(device));
    streams[device].insert(defaults.back());
  }
}

// Whether it has done everything. To synchronize costs 100 us even then.
bool is_idle(Stream stream) {
  std::vector<FakeCudaStream> all(256);
  all.resize(std::min(driver().streams(all.data(), all.size()), all.size()));
  std::lock_guard guard(lock);
  for (const FakeCudaStream& each : all) {
    const Stream number = reinterpret_cast<Stream>(each.handle);
    const bool is_default = each.device == 0 && each.of_framework && !streams[0].contains(number);
    if ((stream == 0 ? is_default : number == stream) && each.queued > 0) return false;
  }
  return true;
}

thread_local std::map<int, Stream> current;

using Flag = std::shared_ptr<std::atomic<bool>>;

struct Block {
  int device;
  Stream stream;
  std::size_t bytes;
  std::vector<Stream> users = {};
};

std::atomic<bool> poisons = false;
std::map<void*, Block> blocks;                                        // all that there are
std::map<std::pair<Stream, std::size_t>, std::vector<void*>> unused;  // of a stream and a size

void give_back(void* memory) {  // on a stream, or by free()
  std::lock_guard guard(lock);
  const Block& block = blocks.at(memory);
  unused[{block.stream, block.bytes}].push_back(memory);
}

}  // namespace

int device_count() {
  return 3;
}

Stream default_stream(int device) {
  std::lock_guard guard(lock);
  make_defaults();
  return defaults[device];
}

Stream new_stream(int device) {
  std::lock_guard guard(lock);
  make_defaults();
  return make_stream(device);
}

Stream current_stream(int device) {
  const auto found = current.find(device);
  return found != current.end() ? found->second : default_stream(device);
}

Stream exchange_stream(int device, Stream stream) {
  const Stream before = current_stream(device);
  current[device] = stream;
  return before;
}

void synchronize(Stream stream) {
  if (driver().streams != nullptr && !is_idle(stream)) driver().stream_synchronize(reinterpret_cast<void*>(stream));
}

void synchronize_device(int device) {
  (void)default_stream(device);
  std::set<Stream> all;
  {
    std::lock_guard guard(lock);
    all = streams[device];
  }
  for (const Stream stream : all) synchronize(stream);
}

void copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  launch(stream, [=] { std::memmove(to, from, bytes); });
}

void* record(void* event, Stream stream) {
  destroy(event);
  auto* flag = new Flag(std::make_shared<std::atomic<bool>>(false));
  launch(stream, [done = *flag] {
    done->store(true);
    done->notify_all();
  });
  return flag;
}

void destroy(void* event) {
  delete static_cast<Flag*>(event);
}

bool is_done(void* event) {
  return event == nullptr || (*static_cast<Flag*>(event))->load();
}

void synchronize_event(void* event) {
  if (event != nullptr) (*static_cast<Flag*>(event))->wait(false);
}

void wait(void* event, Stream stream) {
  if (!is_done(event)) launch(stream, [done = *static_cast<Flag*>(event)] { done->wait(false); });
}

void* allocate(int device, std::size_t bytes) {
  const Stream stream = current_stream(device);
  bytes = (bytes + 511) / 512 * 512;
  std::lock_guard guard(lock);
  std::vector<void*>& fitting = unused[{stream, bytes}];
  if (!fitting.empty()) {
    void* memory = fitting.back();
    fitting.pop_back();
    return memory;
  }
  void* memory = std::aligned_alloc(512, bytes);
  blocks[memory] = {device, stream, bytes};
  if (driver().adopt != nullptr) driver().adopt(memory, bytes, device);
  return memory;
}

void free(void* memory) {
  Block block{};
  {
    std::lock_guard guard(lock);
    block = blocks.at(memory);
    blocks.at(memory).users.clear();
  }
  if (poisons) launch(block.stream, [memory, bytes = block.bytes] { std::memset(memory, 0xa5, bytes); });
  if (block.users.empty()) return give_back(memory);
  const auto left = std::make_shared<std::atomic<std::size_t>>(block.users.size());
  for (const Stream user : block.users) {
    launch(user, [memory, left] {
      if (left->fetch_sub(1) == 1) give_back(memory);
    });
  }
}

void record_use(void* memory, Stream stream) {
  std::lock_guard guard(lock);
  const auto found = blocks.find(memory);
  if (found != blocks.end() && found->second.stream != stream) found->second.users.push_back(stream);
}

void poison(bool on) {
  poisons = on;
}

void empty_cache() {
  for (int device = 0; device < device_count(); ++device) synchronize_device(device);
  std::lock_guard guard(lock);
  for (const auto& [kind, free_ones] : unused) {
    for (void* memory : free_ones) {
      if (driver().release != nullptr) driver().release(memory);
      blocks.erase(memory);
      std::free(memory);
    }
  }
  unused.clear();
}

}  // namespace fake_gpu
