-- Slurm's cli_filter: checks what a batch script launches before the job enters the queue, and refuses it with the finding.
-- Copy it next to slurm.conf and set there: CliFilterPlugins=lua
-- It runs as the user, on the machine where sbatch runs. docs/before-the-queue.md says more.

local MEMCHECK = os.getenv("MEMCHECK_PROGRAM") or "memcheck"
local SECONDS = 20                 -- a check that takes longer lets the job pass, and says so
local WITHOUT_MEMCHECK = os.getenv("MEMCHECK_WITHOUT") or "pass"   -- pass | refuse: where memcheck is not installed
local UNREAD = os.getenv("MEMCHECK_UNREAD") or "submit"            -- submit | refuse: a job that cannot be estimated
local GPU_OF_PARTITION = {         -- for partitions whose GPUs have no type in slurm.conf
  -- gpu = "a100-80gb",
}
local ASKS = { "nodes", "gres", "gpus", "gpus-per-node", "gpus-per-task", "ntasks", "ntasks-per-node", "constraint", "partition" }

local function quoted(text)        -- one word of a shell
  return "'" .. tostring(text):gsub("'", "'\\''") .. "'"
end

local function run(line)           -- the exit code of a command and what it wrote
  local pipe = io.popen(line .. " 2>&1; echo \"exit:$?\"", "r")
  if pipe == nil then return nil, "" end
  local text = pipe:read("*a") or ""
  pipe:close()
  local code = text:match("exit:(%d+)%s*$")
  return tonumber(code), (text:gsub("exit:%d+%s*$", ""))
end

local function installed()
  local code = run("command -v " .. quoted(MEMCHECK) .. " >/dev/null")
  return code == 0
end

local function line_of(options)    -- nil: there is nothing to check
  local argv = options["argv"] or {}
  if options["wrap"] == nil and argv[1] == nil then return nil end
  local words = { "timeout", tostring(SECONDS), quoted(MEMCHECK), "submit", "--check-only", "--unread", UNREAD }
  local gpu = GPU_OF_PARTITION[options["partition"] or ""]
  if gpu ~= nil then words[#words + 1] = "--gpu " .. quoted(gpu) end
  words[#words + 1] = "-- sbatch"
  for _, name in ipairs(ASKS) do
    local value = options[name]
    if value ~= nil then
      value = tostring(value):gsub("^gres:", "")
      if name ~= "nodes" or value ~= "1-0" then   -- what Slurm writes where nobody said it
        words[#words + 1] = quoted("--" .. name .. "=" .. value)
      end
    end
  end
  if options["wrap"] ~= nil then
    words[#words + 1] = "--wrap " .. quoted(options["wrap"])
  else
    words[#words + 1] = quoted(argv[1])
  end
  return table.concat(words, " ")
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, offset)
  if options["type"] ~= "sbatch" then return slurm.SUCCESS end
  local line = line_of(options)
  if line == nil then return slurm.SUCCESS end
  if not installed() then
    slurm.log_error("memcheck is not installed here (%s): the job is not checked, and %s", MEMCHECK,
      WITHOUT_MEMCHECK == "refuse" and "refused" or "passes")
    return WITHOUT_MEMCHECK == "refuse" and slurm.ERROR or slurm.SUCCESS
  end
  local code, text = run(line)
  if code == 0 then return slurm.SUCCESS end
  for row in text:gmatch("[^\n]+") do slurm.log_error("%s", row) end
  if code == 1 then return slurm.ERROR end
  slurm.log_error("memcheck ended with %s: the job is not checked, and passes", tostring(code))
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
