// pg_profile_lookup.ini: the table of headroom that a vendor ships with a SONiC platform where no formula is public.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/units.h"
#include "switch-config/headroom/headroom.h"

namespace tensorlane::headroom {

// One row. Whitespace separates its columns: speed (Mb/s), cable ("40m"), size, xon, xoff, threshold (the exponent of
// alpha, -8 to 7; for a static pool bytes, 64 or more) and, on some platforms, xon_offset.
struct LookupRow {
  BitsPerSecond speed{};
  unsigned cable_metres = 0;
  Headroom headroom;
  int threshold = 0;
  std::optional<Bytes> static_threshold{};  // in the place of `threshold`
  Bytes xon_offset{};

  bool operator==(const LookupRow&) const = default;
};

inline constexpr std::size_t kMaxLookupRows = 4096;

// The rows of a table, sorted by speed and length. `path` is for messages: InvalidArgument with where = "PATH:LINE" for
// a row that does not read as above, for a doubled (speed, length), and for a table without rows.
Result<std::vector<LookupRow>> parse_lookup(std::string_view text, const std::string& path);

// Reads a file of at most 1 MiB. NotFound, and what parse_lookup returns.
Result<std::vector<LookupRow>> load_lookup(const std::string& path);

// The row of this speed with the next longer cable. NotFound when the table has no such speed or ends before.
Result<LookupRow> find_row(const std::vector<LookupRow>& table, BitsPerSecond speed, double cable_metres);

}  // namespace tensorlane::headroom
