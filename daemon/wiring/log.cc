#include "daemon/wiring/log.h"

#include <fmt/format.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include <cstdlib>

namespace tensorlane::wiring {
namespace {

class PriorityFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&, spdlog::memory_buf_t& text) override {
    const std::string_view priority = of(line.level);
    text.append(priority.data(), priority.data() + priority.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PriorityFlag>(); }

 private:
  static std::string_view of(spdlog::level::level_enum level) {
    switch (level) {
      case spdlog::level::trace:
      case spdlog::level::debug:
        return SD_DEBUG;
      case spdlog::level::warn:
        return SD_WARNING;
      case spdlog::level::err:
        return SD_ERR;
      case spdlog::level::critical:
        return SD_CRIT;
      default:
        return SD_INFO;
    }
  }
};

}  // namespace

bool is_journal(int descriptor, const char* journal_stream) {
  struct stat info {};
  return journal_stream != nullptr && fstat(descriptor, &info) == 0 &&
         fmt::format("{}:{}", info.st_dev, info.st_ino) == journal_stream;
}

std::unique_ptr<spdlog::formatter> line_format(const std::string& host, bool journal) {
  auto format = std::make_unique<spdlog::pattern_formatter>();
  format->add_flag<PriorityFlag>('*');
  format->set_pattern((journal ? "%*" : "%Y-%m-%d %H:%M:%S.%e %l ") + host + ": %v");
  return format;
}

void start_log(const config::DaemonConfig& config) {
  auto logger = spdlog::stderr_logger_mt("tensorlaned");
  logger->set_formatter(line_format(config.host, is_journal(STDERR_FILENO, std::getenv("JOURNAL_STREAM"))));
  spdlog::set_default_logger(std::move(logger));
  set_log_level(config.log_level);
}

void set_log_level(config::DaemonConfig::LogLevel level) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};
  spdlog::set_level(kLevels[static_cast<std::size_t>(level)]);
}

}  // namespace tensorlane::wiring
