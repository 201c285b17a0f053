#include "switch-config/headroom/headroom.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

namespace tensorlane::headroom {
namespace {

constexpr double kKib = 1024;
constexpr double kSmallestFrame = 64;
constexpr double kMetresPerSecond = 198e6;  // of light in a cable
constexpr double kMacDelay = 0.8 * kKib;
constexpr double kDefaultPeerResponse = 3.8 * kKib;
constexpr std::uint64_t kPipelineLatency = 19 * 1024;
constexpr std::uint64_t kEgressMirror = 20 * 1024;
constexpr std::uint64_t kAdmissionReserve = 4096;
constexpr unsigned kMostLanes = 8;
constexpr double kGiga = 1e9;
constexpr double kLongestCable = 100'000;
constexpr double kLargestCell = 256;  // of Spectrum-6; Tomahawk5 has 254

struct Chip {
  std::string_view name;
  double cell;
  std::uint64_t lane_gbits;
  bool tiles;  // has a further buffer on the way to the MAC
};

constexpr std::array kChips{Chip{"spectrum1", 96, 25, false}, Chip{"spectrum2", 144, 50, false},
                            Chip{"spectrum3", 144, 50, false}, Chip{"spectrum4", 192, 100, true},
                            Chip{"spectrum5", 192, 100, true}};

const Chip& chip(Asic asic) {
  return kChips[static_cast<std::size_t>(asic)];
}

// The response time of a peer in pause quanta of 512 bits: IEEE 802.3 31B.3.7, with SONiC's values above 100G.
struct Quanta {
  std::uint64_t megabits;
  unsigned quanta;
};
constexpr std::array kQuanta{Quanta{800'000, 905}, Quanta{400'000, 905}, Quanta{200'000, 453}, Quanta{100'000, 394},
                             Quanta{50'000, 147},  Quanta{40'000, 118},  Quanta{25'000, 80},   Quanta{10'000, 67},
                             Quanta{1'000, 2},     Quanta{100, 1}};

double peer_response(BitsPerSecond speed) {
  for (const Quanta& known : kQuanta)
    if (speed.value == known.megabits * 1'000'000) return known.quanta * 64.0;
  return kDefaultPeerResponse;
}

double round_up_kib(double bytes) {
  return std::ceil(bytes / kKib) * kKib;
}

Bytes bytes(double value) {
  return Bytes(static_cast<std::uint64_t>(value));
}

// The share of the packets' bytes that occupies cells badly, in percent. SONiC has 100 * 64 in the numerator, whatever
// the percentage; so has this.
double small_bytes_percent(const Parameters& parameters, unsigned percent) {
  if (parameters.formula == Formula::kOlder) return percent;
  const double large = static_cast<double>(parameters.port.lossless_mtu.value);
  return 100 * kSmallestFrame / ((percent * kSmallestFrame + (100 - percent) * large) / 100);
}

// How many bytes of cells the worst packets take, per byte.
double worst_occupancy(const Parameters& parameters) {
  const double cell = chip(parameters.asic).cell;
  const double worst = cell > 2 * kSmallestFrame ? cell / kSmallestFrame : 2 * cell / (1 + cell);
  return parameters.formula == Formula::kCurrent ? std::ceil(worst) : worst;
}

double xoff(const Parameters& parameters, unsigned percent) {
  const PortParameters& port = parameters.port;
  const bool current = parameters.formula == Formula::kCurrent;
  const double speed = static_cast<double>(port.speed.value) / 1e6;
  const double small = small_bytes_percent(parameters, percent);
  const double occupancy = (100 - small + small * worst_occupancy(parameters)) / 100;
  const double cable = 2 * port.cable_metres * speed * 1e9 / kMetresPerSecond / (8 * 1000);
  const double gearbox = speed * parameters.gearbox_nanoseconds / (8 * 1024);
  const double tile = current && chip(parameters.asic).tiles ? speed / 1000 * 120 / 8 : 0;
  const double peer = current ? peer_response(port.speed) : kDefaultPeerResponse;
  const double in_flight = static_cast<double>(port.port_mtu.value) + cable + 2 * gearbox + kMacDelay + peer + tile;
  return round_up_kib(static_cast<double>(port.lossless_mtu.value) + in_flight * occupancy);
}

Status wrong(const char* parameter, const std::string& what, const std::string& fix) {
  return Status(Code::kInvalidArgument, what, parameter, fix);
}

Status check(const PortParameters& port) {
  if (port.speed.value < 100'000'000 || port.speed.value > 1'600'000'000'000)
    return wrong("speed", "no port has this speed", "say 100M to 1600G");
  if (!(port.cable_metres >= 0 && port.cable_metres <= kLongestCable))
    return wrong("cable", fmt::format("{} m is no length of a cable", port.cable_metres), "say 0 m to 100000 m");
  if (port.port_mtu.value < 64 || port.port_mtu.value > 65535)
    return wrong("mtu", fmt::format("no port has an MTU of {}", port.port_mtu.value), "say 64 to 65535");
  if (port.lossless_mtu.value < 64 || port.lossless_mtu.value > port.port_mtu.value)
    return wrong(
        "lossless-mtu",
        fmt::format("{} is no MTU of lossless packets on a port with {}", port.lossless_mtu.value, port.port_mtu.value),
        "say 64 up to the port's MTU");
  return {};
}

Status check(const Parameters& parameters) {
  TL_RETURN_IF_ERROR(check(parameters.port));
  if (parameters.small_packet_percent > 100)
    return wrong("small-packets", fmt::format("{} is not a percentage", parameters.small_packet_percent),
                 "say 0 to 100");
  if (parameters.lanes && (*parameters.lanes < 1 || *parameters.lanes > kMostLanes))
    return wrong("lanes", fmt::format("no port has {} lanes", *parameters.lanes), "say 1 to 8");
  if (parameters.gearbox_nanoseconds > 10'000)
    return wrong("gearbox", "no gearbox takes longer than 10 us", "say nanoseconds, 0 to 10000");
  return {};
}

// At any speed: the response of the next faster port that is known, and above the fastest in proportion to 400G.
double most_peer_response(BitsPerSecond speed) {
  constexpr std::uint64_t k400G = 400'000'000'000;
  if (speed.value > k400G) return kQuanta.front().quanta * 64.0 * static_cast<double>(speed.value) / k400G;
  const auto next = std::find_if(kQuanta.rbegin(), kQuanta.rend(),
                                 [&](const Quanta& known) { return known.megabits * 1'000'000 >= speed.value; });
  return next->quanta * 64.0;
}

// Upper bounds of a sublayer's delay in bit times; above 100G, the last that is known, in proportion.
double interface_delay(BitsPerSecond speed) {
  const double gigabits = static_cast<double>(speed.value) / kGiga;
  if (gigabits <= 10) return 8192;
  if (gigabits <= 25) return 6144;
  if (gigabits <= 40) return 24576;
  return 122880 * std::max(1.0, gigabits / 100);
}

}  // namespace

Result<Asic> parse_asic(std::string_view text) {
  for (std::size_t i = 0; i < kChips.size(); ++i)
    if (kChips[i].name == text) return static_cast<Asic>(i);
  return Status(Code::kInvalidArgument, fmt::format("the ASIC '{}' is unknown", text), {},
                "say spectrum1, spectrum2, spectrum3, spectrum4 or spectrum5");
}

Result<Formula> parse_formula(std::string_view text) {
  if (text == "current") return Formula::kCurrent;
  if (text == "older") return Formula::kOlder;
  return Status(Code::kInvalidArgument, fmt::format("the formula '{}' is unknown", text), {}, "say current or older");
}

unsigned default_lanes(Asic asic, BitsPerSecond speed) {
  const std::uint64_t lane = chip(asic).lane_gbits * 1'000'000'000;
  return static_cast<unsigned>(std::clamp<std::uint64_t>((speed.value + lane - 1) / lane, 1, kMostLanes));
}

Result<Headroom> nvidia_headroom(const Parameters& parameters) {
  TL_RETURN_IF_ERROR(check(parameters));
  const unsigned percent = parameters.small_packet_percent;
  double needed = xoff(parameters, percent);
  const bool lessened = parameters.formula == Formula::kCurrent && !parameters.shared_headroom && percent != 100;
  if (lessened && needed < xoff(parameters, 100)) needed += 2 * kKib;
  const unsigned lanes = parameters.lanes.value_or(default_lanes(parameters.asic, parameters.port.speed));
  Headroom result;
  result.xoff = bytes(needed);
  result.xon = Bytes(lanes == kMostLanes ? 2 * kPipelineLatency : kPipelineLatency);
  result.size = result.xon;
  if (parameters.shared_headroom) return result;
  result.size += result.xoff;
  if (lanes == kMostLanes) result.size += parameters.port.port_mtu;
  result.size = bytes(round_up_kib(static_cast<double>(result.size.value)));
  return result;
}

Result<Estimate> generic_headroom(const PortParameters& port) {
  TL_RETURN_IF_ERROR(check(port));
  const double speed = static_cast<double>(port.speed.value);
  const double mtu = static_cast<double>(port.port_mtu.value);
  const double lossless = static_cast<double>(port.lossless_mtu.value);
  const double lower =
      2 * port.cable_metres * speed / kMetresPerSecond / 8 + mtu + lossless + peer_response(port.speed);
  // IEEE 802.1Q in bit times: two frames with preamble and gap, the pause frame, both interfaces, the cable at 5 ns/m.
  const double cable_bits = 2 * 5e-9 * port.cable_metres * speed;
  const double bits = mtu * 8 + 160 + 672 + 2 * interface_delay(port.speed) + cable_bits +
                      most_peer_response(port.speed) * 8 + lossless * 8 + 160;
  return Estimate{bytes(std::ceil(lower)), bytes(std::ceil(bits / 8 * kLargestCell / kSmallestFrame - 1e-6))};
}

Result<Bytes> nic_headroom(BitsPerSecond speed, double cable_metres, Bytes mtu) {
  TL_RETURN_IF_ERROR(check(PortParameters{speed, cable_metres, mtu, mtu}));
  const double gigabits = std::max(40.0, static_cast<double>(speed.value) / kGiga);
  const double hundredths = (30100 + 216 * cable_metres) * gigabits + 272 * static_cast<double>(mtu.value);
  return bytes(std::ceil(hundredths / 100 - 1e-6));
}

Result<Bytes> check_port(std::span<const Bytes> sizes, unsigned lanes, Bytes max_headroom) {
  const std::uint64_t units = lanes == kMostLanes ? 2 : 1;
  Bytes groups{};
  for (const Bytes size : sizes) groups += size;
  const Bytes sum = groups + Bytes(units * (kEgressMirror + kPipelineLatency) + kAdmissionReserve);
  if (sum < max_headroom) return sum;
  return Status(Code::kResourceExhausted,
                fmt::format("{} priority groups need {} bytes, egress mirroring {}, the lossy group {}, and {} stay "
                            "free: {} bytes, but the port has {}",
                            sizes.size(), groups.value, units * kEgressMirror, units * kPipelineLatency,
                            kAdmissionReserve, sum.value, max_headroom.value),
                {}, "have fewer lossless classes, shorter cables or a shared headroom pool");
}

Result<Bytes> check_buffer(Bytes buffer, Bytes headroom, Bytes reserved) {
  const Bytes taken = headroom + reserved;
  if (taken.value <= buffer.value / 2) return buffer - taken;
  return Status(Code::kResourceExhausted,
                fmt::format("headroom takes {} bytes and other reservations {}, together {} of the buffer's {}: more "
                            "than half",
                            headroom.value, reserved.value, taken.value, buffer.value),
                {}, "have fewer lossless classes or ports, shorter cables or a shared headroom pool");
}

}  // namespace tensorlane::headroom
