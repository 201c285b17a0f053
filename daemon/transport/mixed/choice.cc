#include "daemon/transport/mixed/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

namespace tensorlane::mixed {
namespace {

struct Record {
  std::uint64_t latency_ns = 0, bits_per_second = 0;
  std::array<char, 15> transport{};
  std::uint8_t chosen = 0;
  std::array<char, 96> verdict{};
};
static_assert(sizeof(Record) == kRecordBytes);

template <std::size_t size>
void pack(const std::string& text, std::array<char, size>& out) {
  std::memcpy(out.data(), text.data(), std::min(text.size(), size - 1));
}

template <std::size_t size>
std::string unpack(const std::array<char, size>& in) {
  std::string text(in.data(), ::strnlen(in.data(), size));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

std::string verdict(const Candidate& candidate, bool is_chosen, const Candidate& chosen, Duration fastest) {
  if (!candidate.figures) {
    return fmt::format("{}{}",
                       is_chosen ? "the most capable; none could be measured: " : "not measured: ", candidate.why_not);
  }
  const double mine = to_seconds(operation_time(*candidate.figures));
  if (!is_chosen) {
    const double best = to_seconds(operation_time(*chosen.figures));
    return fmt::format("{:.3f} ms for {} KiB, {} takes {:.3f} ms", mine * 1e3, kMaxOperation.value >> 10,
                       chosen.transport, best * 1e3);
  }
  if (operation_time(*candidate.figures) == fastest) return "fastest";
  return fmt::format("as fast as any within {:.0f}%, and more capable", kAsFast * 100);
}

}  // namespace

Duration operation_time(const Figures& figures) {
  const double transfer = static_cast<double>(kMaxOperation.value) * 8e9 / static_cast<double>(figures.bandwidth.value);
  return figures.latency + Duration(static_cast<std::int64_t>(transfer));
}

Choice choose(std::span<const Candidate> candidates) {
  TL_ASSERT(!candidates.empty());
  Duration fastest(std::numeric_limits<std::int64_t>::max());
  for (const Candidate& c : candidates) {
    if (c.figures) fastest = std::min(fastest, operation_time(*c.figures));
  }
  const auto as_fast = [&](std::size_t i) {
    return candidates[i].figures &&
           to_seconds(operation_time(*candidates[i].figures)) <= to_seconds(fastest) * (1 + kAsFast);
  };
  Choice choice;
  for (std::size_t i = 0; i < candidates.size(); ++i) choice.order.push_back(i);
  std::ranges::stable_sort(choice.order, {}, [&](std::size_t i) {
    return as_fast(i) ? 0 : candidates[i].figures ? 1 : 2;
  });
  const std::size_t chosen = choice.chosen();
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& c = candidates[i];
    choice.candidates.push_back({c.transport, i == chosen, c.figures ? c.figures->latency : Duration(),
                                 c.figures ? c.figures->bandwidth : BitsPerSecond(),
                                 verdict(c, i == chosen, candidates[chosen], fastest)});
  }
  return choice;
}

std::vector<std::byte> encode(std::span<const ports::PathCandidate> candidates) {
  TL_ASSERT(!candidates.empty() && candidates.size() <= kMaxCandidates);
  std::vector<std::byte> bytes(candidates.size() * kRecordBytes);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    Record record;
    record.latency_ns = static_cast<std::uint64_t>(candidates[i].latency.value);
    record.bits_per_second = candidates[i].bandwidth.value;
    pack(candidates[i].transport, record.transport);
    record.chosen = candidates[i].chosen ? 1 : 0;
    pack(candidates[i].verdict, record.verdict);
    std::memcpy(bytes.data() + i * kRecordBytes, &record, kRecordBytes);
  }
  return bytes;
}

Result<std::vector<ports::PathCandidate>> decode(std::span<const std::byte> bytes) {
  const auto corrupt = [](std::string what) {
    return Status(Code::kCorrupt, std::move(what), "choice of a transport",
                  "install the same tensorlane version on every host");
  };
  if (bytes.empty() || bytes.size() % kRecordBytes != 0 || bytes.size() > kMaxCandidates * kRecordBytes)
    return corrupt(fmt::format("{} bytes of candidates", bytes.size()));
  std::vector<ports::PathCandidate> candidates;
  for (std::size_t at = 0; at < bytes.size(); at += kRecordBytes) {
    Record record;
    std::memcpy(&record, bytes.data() + at, kRecordBytes);
    if (record.chosen > 1 || record.latency_ns > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return corrupt(fmt::format("candidate {} has figures out of range", at / kRecordBytes));
    candidates.push_back({unpack(record.transport), record.chosen == 1,
                          Duration(static_cast<std::int64_t>(record.latency_ns)), BitsPerSecond(record.bits_per_second),
                          unpack(record.verdict)});
  }
  const auto chosen = std::ranges::count_if(candidates, &ports::PathCandidate::chosen);
  if (chosen != 1) return corrupt(fmt::format("{} candidates were chosen", chosen));
  return candidates;
}

}  // namespace tensorlane::mixed
