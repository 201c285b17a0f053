#include "daemon/control/job_key.h"

#include <fmt/format.h>
#include <sodium.h>

#include <array>

namespace tensorlane::control {

// Numbers come first and a host's name has no '/', so that no two keys read the same.
std::string JobKey::text() const {
  return fmt::format("{}@{}:{}/{}", uid, leader, leader_port, name);
}

// A digest of 64 bits of BLAKE2b: whoever wants the id of somebody else's job has to try 2^64 names.
JobId JobKey::id() const {
  const std::string whole = text();
  std::array<unsigned char, crypto_generichash_BYTES_MIN> digest{};
  crypto_generichash(digest.data(), digest.size(), reinterpret_cast<const unsigned char*>(whole.data()), whole.size(),
                     nullptr, 0);
  std::uint64_t id = 0;
  for (std::size_t i = 0; i < sizeof id; ++i) id = id << 8 | digest[i];
  return JobId(id);
}

}  // namespace tensorlane::control
