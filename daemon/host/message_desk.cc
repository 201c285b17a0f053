#include "daemon/host/message_desk.h"

#include <algorithm>

#include "common/base/assert.h"

namespace tensorlane::host {

engine::MessagesConfig MessageDesk::config_of(const ports::JobSpec& spec, const HostConfig& config) {
  engine::MessagesConfig m;
  m.job = spec.credentials.job;
  m.epoch = spec.credentials.epoch;
  m.self = spec.credentials.self;
  m.hosts = static_cast<std::uint16_t>(spec.hosts.size());
  m.host_of.resize(spec.world_size);
  for (std::uint16_t h = 0; h < m.hosts; ++h) {
    for (const Rank rank : spec.hosts[h].ranks) m.host_of[rank.value] = HostIndex(h);
  }
  m.classes = config.single_queue ? std::uint8_t{1} : config.classes;
  m.open_per_rank = protocol::kMessageSlots;
  m.announcements = ports::kAnnouncedMessages;
  return m;
}

Bytes MessageDesk::table_bytes(const engine::MessagesConfig& config) {
  const auto ranks = static_cast<std::uint64_t>(std::ranges::count(config.host_of, config.self));
  return Bytes(engine::Messages::table_bytes(config).value +
               ranks * protocol::kMessageSlots * (sizeof(std::span<std::byte>) + sizeof(std::uint32_t)));
}

MessageDesk::MessageDesk(const engine::MessagesConfig& config, std::span<const RateLimit> limits)
    : messages_(config),
      buffers_(static_cast<std::size_t>(std::ranges::count(config.host_of, config.self)) * protocol::kMessageSlots),
      ids_(buffers_.size()) {
  for (std::uint8_t c = 0; c < config.classes; ++c) limits_.emplace_back(limits[c]);
}

ClassId MessageDesk::post(const MessagePost& post, Time now) {
  engine::Message message = post.message;
  buffers_[message.request] = post.buffer;
  message.buffer = {static_cast<std::uint32_t>(message.request), 0, 0, post.buffer.size()};
  const bool leaves = post.sends && !stays_here(message);
  while (leaves && message.cls.value + 1u < limits_.size() && limits_[message.cls.value].empty(now))
    message.cls = ClassId(message.cls.value + 1);
  if (leaves) limits_[message.cls.value].take(now, Bytes(post.buffer.size()));
  const Status posted = post.sends ? messages_.send(now, message) : messages_.receive(now, message);
  TL_ASSERT(posted.ok());
  ids_[message.request] = messages_.last_posted();
  return message.cls;
}

void MessageDesk::choose_block(JobBlock& block, JobId job, Time now) {
  engine::MessageCopy copy;
  const bool picked = messages_.pick_copy(&copy);
  TL_ASSERT(picked);
  block.add_copy(resolve(copy.to).data(), resolve(copy.from).data(), copy.from.length);
  block.message = true;
  block.token = copy.token;
  block.copied = copy.from.length;
  block.span = {.begin = now,
                .job = job,
                .cls = copy.cls,
                .phase = ports::TraceSpan::Phase::kCopy,
                .bytes = static_cast<std::uint32_t>(copy.from.length)};
}

}  // namespace tensorlane::host
