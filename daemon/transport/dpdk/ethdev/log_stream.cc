#include "daemon/transport/dpdk/ethdev/log_stream.h"

#include <rte_log.h>
#include <spdlog/spdlog.h>

#include <deque>
#include <mutex>
#include <string_view>

namespace tensorlane::dpdk {
namespace {

constexpr std::size_t kComplaints = 3, kLongestLine = 400;

std::mutex complaints_mutex;
std::deque<std::string>& kept() {
  static std::deque<std::string> lines;
  return lines;
}

spdlog::level::level_enum level_of(int level) {
  if (level <= static_cast<int>(RTE_LOG_ERR)) return spdlog::level::err;
  if (level == static_cast<int>(RTE_LOG_WARNING)) return spdlog::level::warn;
  return level == static_cast<int>(RTE_LOG_DEBUG) ? spdlog::level::debug : spdlog::level::info;
}

void take_line(std::string_view line) {
  while (!line.empty() && static_cast<unsigned char>(line.back()) <= ' ') line.remove_suffix(1);
  if (line.empty()) return;
  const int level = rte_log_cur_msg_loglevel();
  spdlog::log(level_of(level), "DPDK: {}", line);
  if (level > static_cast<int>(RTE_LOG_WARNING)) return;
  const std::lock_guard lock(complaints_mutex);
  kept().emplace_back(line.substr(0, kLongestLine));
  if (kept().size() > kComplaints) kept().pop_front();
}

ssize_t write_lines(void*, const char* text, std::size_t bytes) {
  std::string_view left(text, bytes);
  while (!left.empty()) {
    const std::size_t end = std::min(left.find('\n'), left.size());
    take_line(left.substr(0, end));
    left.remove_prefix(std::min(end + 1, left.size()));
  }
  return static_cast<ssize_t>(bytes);
}

ssize_t write_nowhere(void*, const char*, std::size_t bytes) {
  return static_cast<ssize_t>(bytes);
}

std::FILE* open_stream(cookie_write_function_t* write) {
  std::FILE* const stream =
      fopencookie(nullptr, "w", {.read = nullptr, .write = write, .seek = nullptr, .close = nullptr});
  if (stream != nullptr) std::setvbuf(stream, nullptr, _IOLBF, 4096);
  return stream;
}

}  // namespace

std::FILE* log_stream() {
  static std::FILE* const stream = open_stream(write_lines);
  return stream;
}

std::FILE* null_stream() {
  static std::FILE* const stream = open_stream(write_nowhere);
  return stream;
}

std::string complaints() {
  const std::lock_guard lock(complaints_mutex);
  std::string all;
  for (const std::string& line : kept()) all += (all.empty() ? "" : "; ") + line;
  return all;
}

void forget_complaints() {
  const std::lock_guard lock(complaints_mutex);
  kept().clear();
}

}  // namespace tensorlane::dpdk
