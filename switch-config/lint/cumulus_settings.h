// Inside the Cumulus parser: what NVUE commands and qos_features.conf say alike.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switch-config/lint/text.h"

namespace tensorlane::lint::cumulus {

// What holds on all ports that name no other profile.
inline constexpr std::string_view kGlobal = "default-global";

struct Mapping {
  Map* dscps = nullptr;
  Map* pcps = nullptr;
  std::string trust, trust_place;
};

struct Pfc {
  std::string place;
  PrioritySet priorities = 0;
  bool tx = true, rx = true;
  std::string tx_place, rx_place;
  std::optional<double> metres;
  std::string metres_place;
  std::optional<std::uint64_t> buffer, xoff;  // bytes: of the port's buffer, and at which it stops its peer
};

using Schedule = std::array<Queue, kPriorities>;
using Marking = std::array<Ecn*, kPriorities>;

struct PortSettings {
  std::string place;  // the first line that names it
  std::string mapping, pfc, pfc_place, schedule, marking, shaping;
  std::string link_pause;  // where it is on
  std::optional<Watchdog> watchdog;
  std::optional<std::uint64_t> mtu;
  std::string mtu_place;
  std::optional<BitsPerSecond> speed;
};

// By the names of profiles or port groups.
struct Settings {
  std::map<std::string, Mapping, std::less<>> mappings;
  std::map<std::string, Map*, std::less<>> queue_maps;
  std::map<std::string, Pfc, std::less<>> pfcs;
  std::map<std::string, Schedule, std::less<>> schedules;
  std::map<std::string, Marking, std::less<>> markings;
  std::map<std::string, std::array<std::optional<Shaper>, kPriorities>, std::less<>> shapings;
  std::map<std::string, PortSettings, std::less<>> ports;
  std::string roce, roce_mode;  // where the macro is, and which it is
  std::optional<double> roce_metres;
  std::string explicit_;  // where something is said that the macro says, too
  std::optional<Duration> poll;
  std::string poll_place;
  unsigned robustness = 3;  // polls until the watchdog acts

  Mapping& mapping(std::string_view name, Context& context, bool flat);
  Map& queue_map(std::string_view name, Context& context);
};

// What flat files say of all ports, and which port stands for them where none is named.
inline constexpr std::string_view kAllPorts = "allports";

// Whether a text is what `nv config show` prints, as YAML or JSON, or a startup.yaml.
bool is_document(std::string_view text);
// Its settings as the commands that set them, each with its line in the document; lines point into `texts`.
// InvalidArgument for what is no YAML, or no such document.
Result<std::vector<Line>> commands_of(std::string_view text, const std::string& path, std::deque<std::string>& texts);

// Each reads its form; lines that are not understood go to the context.
void read_commands(const std::vector<Line>& lines, Context& context, Settings& settings);
void read_flat(const std::vector<Line>& lines, Context& context, Settings& settings);

// Rules that both forms share.
void schedule(Queue& queue, bool strict, const std::string& place);
bool set_threshold(std::string_view word, std::string_view value, Ecn& ecn);
// Of a profile or group, once all its lines are read.
void check_buffer(const Pfc& pfc, Context& context);

}  // namespace tensorlane::lint::cumulus
