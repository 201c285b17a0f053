// Writes the seeds of one fuzzer, one file each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tensorlane::fuzz {

// Bytes in the order in which a fuzzer's Input takes them.
class Seed {
 public:
  template <typename T>
  Seed& add(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    return add_bytes(std::as_bytes(std::span(&value, 1)));
  }
  Seed& add_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Seed& add_text(std::string_view text) { return add_bytes(std::as_bytes(std::span(text))); }
  Seed& fill(std::size_t count, int value) {
    bytes_.insert(bytes_.end(), count, static_cast<std::byte>(value));
    return *this;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class Corpus {
 public:
  Corpus(const std::filesystem::path& root, const std::string& parser) : folder_(root / parser) {
    std::filesystem::create_directories(folder_);
  }
  void write(const std::string& name, const Seed& seed) const {
    std::ofstream file(folder_ / name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(seed.bytes().data()), static_cast<std::streamsize>(seed.bytes().size()));
    if (!file.flush()) {
      std::fprintf(stderr, "tensorlane: error: cannot write a seed: %s\n", (folder_ / name).c_str());
      std::exit(1);
    }
  }

 private:
  const std::filesystem::path folder_;
};

}  // namespace tensorlane::fuzz
