-- Wireshark and tshark dissector for the trioserve wire protocol, version 1 (protocol/SPEC.md).
--
-- Install: copy the three .lua files of this folder into the one that Wireshark shows under Help > About > Folders as
-- Personal Lua Plugins; or for one run: tshark -X lua_script:trioserve.lua -i lo -f 'tcp port 7001' -O trioserve
--
-- It takes TCP port 7001 and, by its heuristic, any TCP stream that starts with a valid header. Frames are reassembled
-- over segments, several frames in one segment are shown one by one, replies are linked to their requests by rid, and
-- every error status is an expert item, so `trioserve.status != 0` and the Expert Information window list them.

local HEADER_NBYTES = 32
-- The default of the frame limit. A length over it is refused by every peer that keeps the default, so waiting for
-- that many bytes would only hide what follows.
local MAX_BODY_NBYTES = 64 * 1024 * 1024

-- __DIR__ is the folder of this file; the other two stand beside it.
local tables = dofile(__DIR__ .. "/trioserve_tables.lua")
local FRAME_TYPES, STATUSES, CLASSES = tables.FRAME_TYPES, tables.STATUSES, tables.CLASSES

local FRAME_TYPE_OF = {}
for number, name in pairs(FRAME_TYPES) do FRAME_TYPE_OF[name] = number end

local function set_of(names)
  local set = {}
  for _, name in ipairs(names) do set[FRAME_TYPE_OF[name]] = true end
  return set
end

local FROM_CLIENT = set_of { "HELLO", "BIND", "INFER", "INFER_PART", "INFER_MANY", "CANCEL" }
local FROM_SERVER = set_of { "WELCOME", "BOUND", "RESULT", "PARTIAL", "ERROR", "RESULT_MANY", "CREDIT", "GOAWAY" }
-- Answered by a frame of the same type, so the direction has to come from the ports.
local ECHOED = set_of { "UNBIND", "SHM_REG", "SHM_UNREG", "ADMIN" }
local OPENS_REQUEST = set_of { "HELLO", "BIND", "INFER", "INFER_MANY" }
-- What a type puts into the header fields that change their meaning (SPEC, section 6).
local HAS_HANDLE = set_of { "BIND", "BOUND", "UNBIND", "INFER", "INFER_MANY" }
local HAS_STATUS = set_of { "RESULT", "PARTIAL", "ERROR", "RESULT_MANY", "UNBIND", "SHM_REG", "SHM_UNREG", "ADMIN" }
local HAS_TEXT = set_of { "ADMIN" }
local TMO_FIELD = { INFER = "timeout", INFER_MANY = "timeout", INFER_PART = "part", PARTIAL = "part",
  RESULT = "server_time", RESULT_MANY = "server_time", ERROR = "retry_after", CREDIT = "credit_kib" }
local AUX_FIELD = { RESULT = "queue_time", RESULT_MANY = "queue_time", CREDIT = "credit_requests" }

-- ---------------------------------------------------------------------------------------------------- fields
local trioserve = Proto("trioserve", "trioserve model serving protocol")
local f = {
  magic = ProtoField.string("trioserve.magic", "Magic"),
  version = ProtoField.uint8("trioserve.version", "Version"),
  type = ProtoField.uint8("trioserve.type", "Type", base.HEX, FRAME_TYPES),
  body = ProtoField.uint32("trioserve.body", "Body length in bytes"),
  rid = ProtoField.uint64("trioserve.rid", "Request id"),
  taken = ProtoField.uint64("trioserve.goaway.taken", "Requests taken"),
  handle = ProtoField.uint16("trioserve.handle", "Model handle"),
  model = ProtoField.string("trioserve.model", "Model"),
  status = ProtoField.uint16("trioserve.status", "Status", base.HEX, STATUSES),
  grpc = ProtoField.uint16("trioserve.status.grpc", "gRPC code", base.DEC, nil, 0x00ff),
  subcode = ProtoField.uint16("trioserve.status.subcode", "Subcode", base.DEC, nil, 0xff00),
  flags = ProtoField.uint16("trioserve.flags", "Flags", base.HEX),
  class = ProtoField.uint16("trioserve.flags.class", "Class", base.DEC, CLASSES, 0x0003),
  flag_end = ProtoField.bool("trioserve.flags.end", "END", 16, nil, 0x0008),
  flag_crc = ProtoField.bool("trioserve.flags.crc", "CRC", 16, nil, 0x0010),
  flag_compressed = ProtoField.bool("trioserve.flags.compressed", "COMPRESSED", 16, nil, 0x0020),
  flag_shm = ProtoField.bool("trioserve.flags.shm", "SHM", 16, nil, 0x0040),
  flag_seq = ProtoField.bool("trioserve.flags.seq", "SEQ", 16, nil, 0x0080),
  flag_noreply = ProtoField.bool("trioserve.flags.noreply", "NOREPLY", 16, nil, 0x0100),
  flag_retry = ProtoField.bool("trioserve.flags.retry", "RETRY", 16, nil, 0x0200),
  flag_retryable = ProtoField.bool("trioserve.flags.retryable", "RETRYABLE", 16, nil, 0x0200),
  flag_sampled = ProtoField.bool("trioserve.flags.sampled", "SAMPLED", 16, nil, 0x0400),
  flag_reserved = ProtoField.uint16("trioserve.flags.reserved", "Reserved, must be understood", base.HEX, nil, 0x3804),
  timeout = ProtoField.uint32("trioserve.timeout_us", "Deadline in µs, relative (0: the server's default)"),
  part = ProtoField.uint32("trioserve.part", "Part number"),
  server_time = ProtoField.uint32("trioserve.server_us", "Server time in µs"),
  retry_after = ProtoField.uint32("trioserve.retry_after_us", "Retry after µs"),
  tmo = ProtoField.uint32("trioserve.tmo", "tmo"),
  credit_kib = ProtoField.uint32("trioserve.credit.kib", "Window in KiB"),
  credit_requests = ProtoField.uint32("trioserve.credit.requests", "Window in requests"),
  meta8 = ProtoField.uint16("trioserve.meta8", "Meta length / 8"),
  rows = ProtoField.uint16("trioserve.rows", "Rows"),
  aux = ProtoField.uint32("trioserve.aux", "aux", base.HEX),
  crc = ProtoField.uint32("trioserve.crc", "CRC-32 of the body", base.HEX),
  queue_time = ProtoField.uint32("trioserve.queue_us", "Time in queue in µs"),
  meta = ProtoField.bytes("trioserve.meta", "Meta"),
  payload = ProtoField.bytes("trioserve.payload", "Payload"),
  payload_text = ProtoField.string("trioserve.payload.text", "Payload"),
  request_in = ProtoField.framenum("trioserve.request_in", "Request in", base.NONE, frametype.REQUEST),
  response_in = ProtoField.framenum("trioserve.response_in", "Response in", base.NONE, frametype.RESPONSE),
  time = ProtoField.relative_time("trioserve.time", "Time since the request"),
}
local e = {
  status = ProtoExpert.new("trioserve.expert.status", "Request failed", expert.group.RESPONSE_CODE, expert.severity.WARN),
  fatal = ProtoExpert.new("trioserve.expert.fatal", "Not a frame", expert.group.MALFORMED, expert.severity.ERROR),
  malformed = ProtoExpert.new("trioserve.expert.malformed", "Malformed meta", expert.group.MALFORMED, expert.severity.ERROR),
  reserved = ProtoExpert.new("trioserve.expert.reserved", "Reserved flag set", expert.group.PROTOCOL, expert.severity.WARN),
  unknown = ProtoExpert.new("trioserve.expert.unknown", "Unknown frame type", expert.group.UNDECODED, expert.severity.WARN),
  duplicate = ProtoExpert.new("trioserve.expert.duplicate", "Second terminal reply", expert.group.SEQUENCE, expert.severity.ERROR),
}
trioserve.experts = e

local meta = dofile(__DIR__ .. "/trioserve_meta.lua")(tables, e.malformed)
for name, field in pairs(meta.fields) do
  assert(f["tlv_" .. name] == nil)
  f["tlv_" .. name] = field
end
trioserve.fields = f
trioserve.prefs.port = Pref.uint("TCP port", 7001, "Port that is trioserve without looking at the bytes")

-- ---------------------------------------------------------------------------------------------------- state
-- One entry a TCP stream: who the client is, what its handles mean, which requests are open. Filled on the first pass
-- over the capture and only read on later ones (pinfo.visited), as Wireshark revisits frames in any order.
local streams = {}
local links = {}  -- frame key -> { request = frame number, response = frame number, delta = NSTime }

function trioserve.init()
  streams = {}
  links = {}
end

-- By addresses and ports, not by the tcp.stream field: fields are not there on a first pass that builds no tree.
local function stream_of(pinfo)
  local here = string.format("%s:%d", tostring(pinfo.src), pinfo.src_port)
  local there = string.format("%s:%d", tostring(pinfo.dst), pinfo.dst_port)
  local id = here < there and here .. "|" .. there or there .. "|" .. here
  if streams[id] == nil then
    streams[id] = { client_port = nil, models = {}, requests = {}, many = {} }
  end
  return streams[id]
end

-- True if the frame travels from server to client.
local function is_reply(kind, pinfo, stream)
  if FROM_SERVER[kind] then return true end
  if FROM_CLIENT[kind] then return false end
  if stream.client_port ~= nil then return pinfo.src_port ~= stream.client_port end
  return pinfo.src_port == trioserve.prefs.port or pinfo.src_port < pinfo.dst_port
end

local function remember_client(kind, pinfo, stream)
  if stream.client_port ~= nil then return end
  if FROM_CLIENT[kind] then stream.client_port = pinfo.src_port end
  if FROM_SERVER[kind] then stream.client_port = pinfo.dst_port end
end

-- A frame is named by the packet that completes it and its request id: one packet may complete many frames.
local function link_key(pinfo, kind, rid)
  return string.format("%d/%s/%s", pinfo.number, tostring(kind), tostring(rid))
end

local function open_request(pinfo, stream, kind, rid, rows, model)
  local request = { frame = pinfo.number, time = pinfo.rel_ts, first = rid, model = model, answers = {} }
  request.key = link_key(pinfo, kind, rid)
  links[request.key] = {}
  if kind == FRAME_TYPE_OF.INFER_MANY then
    request.last = rid + UInt64(math.max(rows, 1) - 1)
    table.insert(stream.many, request)
  else
    stream.requests[tostring(rid)] = request
  end
end

local function find_request(stream, rid)
  local request = stream.requests[tostring(rid)]
  if request ~= nil then return request end
  for index = #stream.many, 1, -1 do
    request = stream.many[index]
    if request.first <= rid and rid <= request.last then return request end
  end
  return nil
end

-- Links the reply to its request and returns the request's model.
local function answer_request(pinfo, stream, kind, rid, terminal)
  local request = find_request(stream, rid)
  if request == nil then return nil end
  local seconds = pinfo.rel_ts - request.time
  local whole = math.floor(seconds)
  local delta = NSTime.new(whole, math.floor((seconds - whole) * 1e9 + 0.5))
  local duplicate = terminal and request.answers[tostring(rid)] or false
  links[link_key(pinfo, kind, rid)] = { request = request.frame, delta = delta, duplicate = duplicate }
  if terminal then request.answers[tostring(rid)] = true end
  links[request.key].response = links[request.key].response or pinfo.number
  return request.model
end

-- ---------------------------------------------------------------------------------------------------- header
local FLAG_BITS = { { 0x08, "END" }, { 0x10, "CRC" }, { 0x20, "COMPRESSED" }, { 0x40, "SHM" }, { 0x80, "SEQ" },
  { 0x100, "NOREPLY" }, { 0x200, "RETRY" }, { 0x400, "SAMPLED" } }

local function dissect_flags(range, tree, reply)
  local value = range:le_uint()
  local branch = tree:add_le(f.flags, range)
  local names = {}
  for _, entry in ipairs(FLAG_BITS) do
    if bit.band(value, entry[1]) ~= 0 then
      names[#names + 1] = (entry[2] == "RETRY" and reply) and "RETRYABLE" or entry[2]
    end
  end
  if #names > 0 then branch:append_text(" (" .. table.concat(names, ", ") .. ")") end
  branch:add_le(f.class, range)
  for _, field in ipairs { f.flag_end, f.flag_crc, f.flag_compressed, f.flag_shm, f.flag_seq, f.flag_noreply } do
    branch:add_le(field, range)
  end
  branch:add_le(reply and f.flag_retryable or f.flag_retry, range)
  branch:add_le(f.flag_sampled, range)
  branch:add_le(f.flag_reserved, range)
  if bit.band(value, 0x3804) ~= 0 then branch:add_proto_expert_info(e.reserved) end
  return value
end

local function dissect_varying(tvb, tree, frame)
  if HAS_STATUS[frame.type] and frame.reply then
    local status = tree:add_le(f.status, tvb(16, 2))
    status:add_le(f.grpc, tvb(16, 2))
    status:add_le(f.subcode, tvb(16, 2))
    frame.status = tvb(16, 2):le_uint()
  elseif HAS_HANDLE[frame.type] then
    tree:add_le(f.handle, tvb(16, 2))
    frame.handle = tvb(16, 2):le_uint()
  end
  local tmo = tree:add_le(f[TMO_FIELD[frame.name] or "tmo"], tvb(20, 4))
  if frame.name == "ERROR" and tvb(20, 4):le_uint() == 0xffffffff then tmo:append_text(" (never)") end
  local crc = bit.band(frame.flags, 0x10) ~= 0
  tree:add_le(f[crc and "crc" or AUX_FIELD[frame.name] or "aux"], tvb(28, 4))
end

local function dissect_header(tvb, pinfo, tree, stream)
  local frame = { type = tvb(3, 1):uint(), body = tvb(4, 4):le_uint(), rid = tvb(8, 8):le_uint64() }
  frame.reply = is_reply(frame.type, pinfo, stream)
  frame.name = FRAME_TYPES[frame.type] or string.format("type 0x%02x", frame.type)
  frame.rows, frame.meta_nbytes = tvb(26, 2):le_uint(), 8 * tvb(24, 2):le_uint()
  tree:add(f.magic, tvb(0, 2))
  tree:add(f.version, tvb(2, 1))
  local kind = tree:add(f.type, tvb(3, 1))
  if FRAME_TYPES[frame.type] == nil and frame.type < 0x80 then kind:add_proto_expert_info(e.unknown) end
  tree:add_le(f.body, tvb(4, 4))
  tree:add_le(frame.name == "GOAWAY" and f.taken or f.rid, tvb(8, 8))
  frame.flags = dissect_flags(tvb(18, 2), tree, frame.reply)
  dissect_varying(tvb, tree, frame)
  tree:add_le(f.meta8, tvb(24, 2))
  tree:add_le(f.rows, tvb(26, 2))
  return frame
end

local function dissect_payload(range, tree, frame)
  if HAS_TEXT[frame.type] then
    tree:add(f.payload_text, range, range:string(ENC_UTF_8))
  else
    tree:add(f.payload, range)
  end
end

-- ---------------------------------------------------------------------------------------------------- frame
local function track(pinfo, stream, frame, found)
  remember_client(frame.type, pinfo, stream)
  if frame.type == FRAME_TYPE_OF.BIND then stream.models[frame.handle] = found.MODEL end
  local model = found.MODEL or (frame.handle and stream.models[frame.handle])
  if frame.reply and frame.rid ~= UInt64(0) then
    model = answer_request(pinfo, stream, frame.type, frame.rid, bit.band(frame.flags, 0x08) ~= 0)
  elseif OPENS_REQUEST[frame.type] or ECHOED[frame.type] then
    open_request(pinfo, stream, frame.type, frame.rid, frame.rows, model)
  end
  links[link_key(pinfo, "model", frame.rid)] = model
end

local function show_links(pinfo, tree, frame)
  local link = links[link_key(pinfo, frame.type, frame.rid)]
  if link == nil then return end
  if link.request then
    tree:add(f.request_in, link.request):set_generated()
    tree:add(f.time, link.delta):set_generated()
  end
  if link.response then tree:add(f.response_in, link.response):set_generated() end
  if link.duplicate then tree:add_proto_expert_info(e.duplicate) end
end

local function summary(frame, found)
  local words = { frame.name }
  if frame.rid ~= UInt64(0) then words[#words + 1] = "rid=" .. tostring(frame.rid) end
  if frame.model then words[#words + 1] = frame.model end
  if frame.rows > 0 then words[#words + 1] = "rows=" .. frame.rows end
  if frame.status and frame.status ~= 0 then
    words[#words + 1] = STATUSES[frame.status] or string.format("status 0x%04x", frame.status)
  end
  if found.ERRMSG then words[#words + 1] = '"' .. found.ERRMSG .. '"' end
  return table.concat(words, " ")
end

local function dissect_frame(tvb, pinfo, root)
  local stream = stream_of(pinfo)
  local tree = root:add(trioserve, tvb())
  local frame = dissect_header(tvb, pinfo, tree, stream)
  local found = {}
  if frame.meta_nbytes > frame.body then
    tree:add_proto_expert_info(e.fatal, "Meta is longer than the body")
  else
    if frame.meta_nbytes > 0 then
      local range = tvb(HEADER_NBYTES, frame.meta_nbytes)
      found = meta.dissect(range:tvb(), tree:add(f.meta, range):set_text("Meta"))
    end
    if frame.body > frame.meta_nbytes then
      dissect_payload(tvb(HEADER_NBYTES + frame.meta_nbytes), tree, frame)
    end
  end
  if not pinfo.visited then track(pinfo, stream, frame, found) end
  frame.model = links[link_key(pinfo, "model", frame.rid)]
  if frame.model then tree:add(f.model, frame.model):set_generated() end
  show_links(pinfo, tree, frame)
  local text = summary(frame, found)
  tree:set_text("trioserve, " .. text)
  if frame.status and frame.status ~= 0 then
    tree:add_proto_expert_info(e.status, STATUSES[frame.status] or "Unknown status")
  end
  pinfo.cols.protocol = "TRIOSERVE"
  pinfo.cols.info:append(text .. "  ")  -- one packet may hold many frames
  return tvb:len()
end

-- ---------------------------------------------------------------------------------------------------- stream
-- Why these bytes cannot be a header, or nil.
local function fault(tvb)
  if tvb(0, 2):string() ~= "TS" then return "Bad magic" end
  if tvb(2, 1):uint() ~= 1 then return "Unknown protocol version" end
  local body = tvb(4, 4):le_uint()
  if body % 8 ~= 0 then return "Body is not a multiple of 8" end
  if body > MAX_BODY_NBYTES then return "Body is over the default limit" end
  return nil
end

-- A stream that lost its framing cannot find it again (SPEC: such a fault is fatal), so the rest is one item.
local function frame_length(tvb, _, offset)
  local head = tvb(offset, HEADER_NBYTES)
  if fault(head:tvb():range()) then return tvb:len() - offset end
  return HEADER_NBYTES + head(4, 4):le_uint()
end

local function dissect_one(tvb, pinfo, root)
  local text = fault(tvb:range())
  if text == nil then return dissect_frame(tvb, pinfo, root) end
  local tree = root:add(trioserve, tvb())
  tree:add_proto_expert_info(e.fatal, text)
  pinfo.cols.protocol = "TRIOSERVE"
  pinfo.cols.info:append(text)
  return tvb:len()
end

function trioserve.dissector(tvb, pinfo, root)
  if tvb:len() == 0 then return 0 end
  pinfo.cols.info:clear()
  dissect_tcp_pdus(tvb, root, HEADER_NBYTES, frame_length, dissect_one)
  pinfo.cols.info:fence()
  return tvb:len()
end

local function heuristic(tvb, pinfo, root)
  if tvb:len() < HEADER_NBYTES or fault(tvb:range()) ~= nil then return false end
  if 8 * tvb(24, 2):le_uint() > tvb(4, 4):le_uint() then return false end
  if FRAME_TYPES[tvb(3, 1):uint()] == nil then return false end
  pinfo.conversation = trioserve  -- later segments need not start with a header
  trioserve.dissector(tvb, pinfo, root)
  return true
end

local port_table = DissectorTable.get("tcp.port")
local registered_port = trioserve.prefs.port
port_table:add(registered_port, trioserve)

function trioserve.prefs_changed()
  port_table:remove(registered_port, trioserve)
  registered_port = trioserve.prefs.port
  port_table:add(registered_port, trioserve)
end

trioserve:register_heuristic("tcp", heuristic)
