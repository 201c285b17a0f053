// pg_profile_lookup.ini: every row that is accepted is found again.
#include "input.h"
#include "switch-config/headroom/lookup.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tensorlane;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto table = headroom::parse_lookup(text, "pg.ini");
  if (!table.ok()) {
    fuzz::expect_explained(table.status());
    TL_ASSERT(table.status().where().starts_with("pg.ini") && !table.status().fix().empty());
    return 0;
  }
  for (const auto& row : *table) {
    const auto found = headroom::find_row(*table, row.speed, row.cable_metres);
    TL_ASSERT(found.ok() && *found == row);
  }
  return 0;
}
